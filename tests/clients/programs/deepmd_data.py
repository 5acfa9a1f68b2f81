"""Writes a system of a few atoms and DeePMD-kit's input files for it into the working directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FRAMES, ATOMS = 12, 6


def write(folder: Path) -> None:
    """Writes a system of atoms in a harmonic field, and DeePMD-kit's input file for it."""
    random = np.random.default_rng(0)
    place = folder / "system" / "set.000"
    place.mkdir(parents=True)
    grid = np.array([[x, y, z] for x in range(2) for y in range(3) for z in range(1)], float) * 2 + 1
    coordinates = grid[None] + random.normal(scale=0.2, size=(FRAMES, ATOMS, 3))
    away = coordinates - grid[None]
    np.save(place / "coord.npy", coordinates.reshape(FRAMES, -1))
    np.save(place / "box.npy", np.tile(np.eye(3).ravel() * 20, (FRAMES, 1)))
    np.save(place / "energy.npy", 0.5 * (away**2).sum((1, 2)))
    np.save(place / "force.npy", -away.reshape(FRAMES, -1))
    (folder / "system/type.raw").write_text("\n".join(["0"] * 3 + ["1"] * 3))
    (folder / "system/type_map.raw").write_text("O\nH\n")
    descriptor = {"type": "se_e2_a", "sel": [6, 6], "rcut": 5.0, "rcut_smth": 0.5, "neuron": [4, 8], "axis_neuron": 4}
    settings: dict[str, Any] = {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {**descriptor, "seed": 1},
            "fitting_net": {"neuron": [8, 8], "seed": 1},
        },
        "learning_rate": {"type": "exp", "decay_steps": 10, "start_lr": 1e-3, "stop_lr": 1e-5},
        "loss": {"type": "ener"},
        "training": {
            "training_data": {"systems": ["system"], "batch_size": 2},
            "numb_steps": 20,
            "seed": 1,
            "disp_file": "lcurve.out",
            "disp_freq": 5,
            "save_freq": 10,
        },
    }
    (folder / "input.json").write_text(json.dumps(settings))
    settings["training"]["numb_steps"] = 30
    (folder / "longer.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write(Path())
