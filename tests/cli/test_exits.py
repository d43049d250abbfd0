import subprocess
import sys

import pytest

from simtrain.cli.terminal import run_command
from simtrain.errors import ConfigError, DivergenceError, SimulationError


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        (None, 0, ""),
        (ConfigError("--num-envs is 0"), 2, "error: --num-envs is 0\n"),
        (DivergenceError("no gradient"), 1, "error: no gradient\n"),
        (SimulationError("MuJoCo failed"), 1, "error: MuJoCo failed\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_command_ends_with_its_code_and_a_message(ending, code, message, capsys):
    def command():
        if ending is not None:
            raise ending
        return 0

    with pytest.raises(SystemExit) as exit_:
        run_command(command)
    assert exit_.value.code == code
    assert capsys.readouterr().err == message


INTERRUPTED = """if True:
    import os, signal, sys
    from simtrain.cli.terminal import end_at_once_on_signals, interruptible
    end_at_once_on_signals(signal.SIGINT)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGNAL)
    except BaseException as error:
        print("cleaned up", repr(error))
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # as some imports do
    print("went on")
    """
PRINTS = """if True:
    import os, sys
    from simtrain.cli.terminal import run_command

    def command():
        for number in range(3):
            print(f"line {number}", flush=True)
        print("a warning", file=sys.stderr)
        with open(sys.argv[1], "w") as file:
            file.write(f"went on, with descriptor {file.fileno()}")
        return 0

    run_command(command, outlives_output=True)
    """


def _run(program: str, output: str = "", argument: str = "/dev/null") -> tuple[int, str, str]:
    """A program's exit code, output and errors; bash directs its output elsewhere."""
    script = (
        f'unset PYTHONUNBUFFERED; (sleep 0.5; "$0" -c "$1" "$2") {output}; exit ${{PIPESTATUS[0]}}'
    )
    result = subprocess.run(
        ["bash", "-c", script, sys.executable, program, argument],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("name", "error"), [("INT", "KeyboardInterrupt()"), ("TERM", "SystemExit(143)")]
)
def test_what_is_interruptible_is_cleaned_up_and_the_rest_ends_at_once(name, error):
    program = INTERRUPTED.replace("signal.SIGNAL", f"signal.SIG{name}")
    assert _run(program) == (130, f"cleaned up {error}\n", "")


def test_a_mistake_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


@pytest.mark.parametrize("output", ["|& true", ">&- 2>&-", "<&- >&- 2>&-", "> /dev/full 2>&1"])
def test_a_command_outlives_its_output(output, tmp_path):
    """Also where a file could take the descriptor of a stream that is closed."""
    assert _run(PRINTS, output, str(tmp_path / "file")) == (0, "", "")
    assert (tmp_path / "file").read_text() == "went on, with descriptor 3"


def test_a_command_that_has_nothing_to_do_but_print_ends_with_its_reader():
    assert _run(PRINTS.replace(", outlives_output=True", ""), "| true") == (1, "", "")


def test_output_that_cannot_be_written_is_a_failure_without_a_traceback():
    program = "from simtrain.cli.terminal import run_command; run_command(lambda: print('hi') or 0)"
    assert _run(program, "> /dev/full") == (1, "", "")
