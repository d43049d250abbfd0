"""A person who walks, made up, as BVH files of several skeletons."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FPS, STEP, STRIDE = 60, 0.6, 0.5  # frames a second; s; m
THIGH, SHANK, ANKLE = 0.42, 0.41, 0.08
MIXAMO = (
    "mixamorig:Hips",
    "mixamorig:Spine",
    "UpLeg Leg Foot ToeBase",
    "Shoulder Arm ForeArm Hand",
)
SOMA = ("Hips", "Chest", "Leg Shin Foot ToeBase", "Shoulder Arm ForeArm Hand")
OPTITRACK = ("Hip", "Ab", "Thigh Shin Foot Toe", "Shoulder UArm FArm Hand")
BONES = ("b0", "b1", "c d e f", "g h i j")


def write_walk(
    path: Path,
    names: tuple[str, str, str, str] = MIXAMO,
    unit: float = 100.0,
    up: str = "y",
    seconds: float = 3.0,
    channels: int = 3,
) -> Path:
    """Write a walk of steps of 0.5 m in 0.6 s along the file's x axis if z is up, else along z."""
    rows = [_frame(i / FPS, unit, up, channels) for i in range(round(seconds * FPS))]
    lines = ["HIERARCHY", *_hierarchy(names, unit, up, channels)]
    lines += ["MOTION", f"Frames: {len(rows)}", f"Frame Time: {1.0 / FPS:.7f}"]
    lines += [" ".join(f"{value:.5f}" for value in row) for row in rows]
    path.write_text("\n".join(lines))
    return path


def _turned(vector: tuple[float, float, float], unit: float, up: str) -> list[float]:
    """A vector ahead, left, up along the file's axes."""
    ahead, left, high = (unit * value for value in vector)
    return [ahead, left, high] if up == "z" else [left, high, ahead]


def _hierarchy(names: tuple[str, str, str, str], unit: float, up: str, channels: int) -> list[str]:
    root, spine, leg, arm = names
    position, rotation = "Xposition Yposition Zposition", "Zrotation Xrotation Yrotation"
    lines: list[str] = []

    def joint(kind: str, name: str, place: tuple[float, float, float], depth: int) -> None:
        own = f"{position} {rotation}" if channels == 6 or kind == "ROOT" else rotation
        x, y, z = _turned(place, unit, up)
        lines.extend([f"{kind} {name}", "{", f"OFFSET {x:.5f} {y:.5f} {z:.5f}"])
        lines.append(f"CHANNELS {len(own.split())} {own}")

    def end(place: tuple[float, float, float], closed: int) -> None:
        x, y, z = _turned(place, unit, up)
        lines.extend(["End Site", "{", f"OFFSET {x:.5f} {y:.5f} {z:.5f}", "}", *["}"] * closed])

    prefix = root.partition(":")[0] + ":" if ":" in root else ""
    sides = ("Left", "Right") if names in (MIXAMO, SOMA) else ("L", "R")
    sides = ("p", "q") if names == BONES else sides
    joint("ROOT", root, (0.0, 0.0, 0.0), 0)
    for side, sign in zip(sides, (1.0, -1.0), strict=True):
        places = [(0, sign * 0.1, 0), (0, 0, -THIGH), (0, 0, -SHANK), (0.13, 0, -0.06)]
        for name, place in zip(leg.split(), places, strict=True):
            joint("JOINT", f"{prefix}{side}{name}", place, 1)
        end((0.05, 0.0, 0.0), 4)
    joint("JOINT", spine, (0.0, 0.0, 0.2), 1)
    for side, sign in zip(sides, (1.0, -1.0), strict=True):
        places = [(0, sign * 0.05, 0.3), (0, sign * 0.13, 0), (0, 0, -0.28), (0, 0, -0.25)]
        for name, place in zip(arm.split(), places, strict=True):
            joint("JOINT", f"{prefix}{side}{name}", place, 2)
        end((0.0, 0.0, -0.08), 4)
    lines.extend(["}", "}"])
    return lines


def _frame(time: float, unit: float, up: str, channels: int) -> list[float]:
    """A row of numbers: all turns are about the axis to the left."""
    speed, height = STRIDE / STEP, THIGH + SHANK + ANKLE - 0.05
    values = _turned((speed * time, 0.0, height), unit, up) + [0.0] * 3
    offsets = [(0, 0.1, 0), (0, 0, -THIGH), (0, 0, -SHANK), (0.13, 0, -0.06)]

    def turn(angle: float, place: tuple[float, float, float]) -> list[float]:
        degrees = float(np.degrees(angle))
        about = [0.0, 0.0, degrees] if up == "z" else [0.0, degrees, 0.0]  # channels are Z X Y
        return [*(_turned(place, unit, up) if channels == 6 else ()), *about]

    for side, sign in ((0, 1.0), (1, -1.0)):
        ahead, high = _foot(time + side * STEP)
        x, z = ahead - side * STRIDE - speed * time, ANKLE + high - height
        reach = np.hypot(x, z)
        bend = np.pi - np.arccos((THIGH**2 + SHANK**2 - reach**2) / (2 * THIGH * SHANK))
        lean = np.arctan2(x, -z) + np.arctan2(SHANK * np.sin(bend), THIGH + SHANK * np.cos(bend))
        places = [(0, sign * 0.1, 0), *offsets[1:]]
        for angle, place in zip((-lean, bend, lean - bend, 0.0), places, strict=True):
            values += turn(angle, place)
    values += turn(0.0, (0.0, 0.0, 0.2))
    swing = 0.4 * np.sin(np.pi * time / STEP)
    for sign in (1.0, -1.0):
        places = [(0, sign * 0.05, 0.3), (0, sign * 0.13, 0), (0, 0, -0.28), (0, 0, -0.25)]
        for angle, place in zip((0.0, sign * swing, -0.3, 0.0), places, strict=True):
            values += turn(angle, place)
    return values


def _foot(time: float) -> tuple[float, float]:
    """How far an ankle is ahead, and how far raised: it stands for a step, and swings for one."""
    cycle, phase = divmod(time / (2 * STEP), 1.0)
    if phase < 0.5:
        return STRIDE * (2 * cycle + 0.5), 0.0
    share = (phase - 0.5) / 0.5
    moved = share - np.sin(2 * np.pi * share) / (2 * np.pi)
    return STRIDE * (2 * (cycle + moved) + 0.5), 0.06 * (1 - np.cos(2 * np.pi * share))
