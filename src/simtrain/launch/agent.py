"""torchrunx's agent of a host, which starts the ranks there, as a process that keeps strangers out.

Run as ``python -m simtrain.launch.agent``, with the arguments of ``python -m torchrunx``.
"""

import runpy

from simtrain.launch.torchrunx_internals import join_privately

if __name__ == "__main__":
    join_privately()
    runpy.run_module("torchrunx", run_name="__main__", alter_sys=True)
