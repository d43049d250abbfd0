"""The web viewer: a page with the robot in 3-D, its commands and rewards, served by viser."""

import time
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import trimesh
import viser
from mjviser import ViserMujocoScene
from mjviser.conversions import merge_geoms
from PIL import Image

from simtrain.env import terrain
from simtrain.env.commands import Marker, Sphere
from simtrain.env.env import Env
from simtrain.view import panels
from simtrain.view.playback import Act, Playback
from simtrain.view.renderer import GHOST_RGBA, DrawnEnv, arrows_of, robot_radius
from simtrain.view.server import PageServer

_FRAME_S, _PANELS_S = 1.0 / 30.0, 0.25
_STRAIGHT_M = 1e-4


class WebViewer(PageServer):
    """Serves a page that shows a policy, and lets its user command the robot."""

    def __init__(
        self,
        env: Env,
        act: Act,
        *,
        host: str,
        port: int,
        title: str,
        checkpoints: panels.Checkpoints | None = None,
    ) -> None:
        """Start the server, see `PageServer`, and new episodes in all environments.

        `checkpoints` are those to choose from, None for `act` alone.
        """
        super().__init__(host, port, title)
        self._playback = Playback(env, act)
        self._requests: panels.Requests = panels.Requests()
        self._markers: dict[str, dict[str, Any]] = {}
        server, requests = self.server, self._requests
        self._drawn = DrawnEnv(env)
        model = self._drawn.model
        if env.terrain is not None:
            # Drawn below: mjviser would stretch the floor's texture once over all of it.
            model.geom(terrain.NAME).rgba[3] = 0.0
        self._scene = ViserMujocoScene(server, model, env.num_envs)
        if env.terrain is not None:
            server.scene.add_mesh_trimesh(
                "/fixed_bodies/ground", ground_mesh(model), cast_shadow=False, receive_shadow=0.3
            )
        self._was_tracking = self._scene.camera_tracking_enabled
        # Elsewhere all environments stand in the same place.
        self._scene.show_only_selected = env.terrain is None
        self._ghost_bodies: dict[str, dict[int, viser.MeshHandle]] = {}
        self._scene.set_refresh_handler(lambda: requests.put(self._draw))
        gui = server.gui
        tabs = gui.add_tab_group()
        with tabs.add_tab("Play", icon=viser.Icon.PLAYER_PLAY):
            self._policy_panel = None
            if checkpoints is not None:
                self._policy_panel = panels.PolicyPanel(gui, checkpoints)
            self._playback_panel = panels.PlaybackPanel(gui, self._playback, requests)
            self._command_panels: list[panels.CommandPanel] = []
            for name in (n for n, term in env.commands.terms.items() if term.is_driven):
                with gui.add_folder(f"Command: {name}"):
                    first = not self._command_panels
                    self._command_panels.append(panels.CommandPanel(gui, env, name, keys=first))
            with gui.add_folder("Reward per second"):
                self._reward_panel = panels.RewardPanel(gui, self._playback)
        with tabs.add_tab("Scene", icon=viser.Icon.VIDEO):
            self._scene.create_scene_gui(
                camera_distance=3.0 * robot_radius(model),
                camera_azimuth=float(model.vis.global_.azimuth),
                camera_elevation=-float(model.vis.global_.elevation),
            )
            with gui.add_folder("Groups", expand_by_default=False):
                self._scene.create_groups_gui()
        with tabs.add_tab("Overlays", icon=viser.Icon.EYE):
            self._scene.create_overlay_gui()
        self._draw()
        self._update_panels(0.0)

    def run(self) -> None:
        """Play until interrupted; nothing is simulated while no page is open."""
        last = last_update = time.perf_counter()
        time_then = self._playback.time_s
        while True:
            while not self._requests.empty():
                self._requests.get()()
            for panel in self._command_panels:
                panel.drive()
            now = time.perf_counter()
            if self.server.get_clients():
                self._playback.advance(min(now - last, 4 * _FRAME_S))
                self._draw()
                if now - last_update >= _PANELS_S:
                    factor = (self._playback.time_s - time_then) / (now - last_update)
                    last_update, time_then = now, self._playback.time_s
                    self._update_panels(factor)
            last = now
            time.sleep(max(0.0, _FRAME_S - (time.perf_counter() - now)))

    def _draw(self) -> None:
        """Show the present state of the chosen environment."""
        env, scene = self._playback.env, self._scene
        fields = ["xpos", "xmat", "qpos", "qvel", "ctrl"]
        fields += ["mocap_pos", "mocap_quat"] if scene.mj_model.nmocap > 0 else []
        state: dict[str, Any] = {field: env.bind(field).cpu().numpy() for field in fields}
        positions = state.pop("xpos").reshape(env.num_envs, -1, 3)
        rotations = state.pop("xmat").reshape(env.num_envs, -1, 3, 3)
        before = scene.fixed_bodies_frame.position.copy()  # viser changes it in place
        with self.server.atomic():
            if scene.show_only_selected and self._drawn.take_sizes(scene.env_idx):
                scene.rebuild_visual_handles()
            scene.update_from_arrays(positions, rotations, **state)
            for name, term in env.commands.terms.items():
                self._draw_markers(name, term.markers(scene.env_idx))
            for name, data in self._drawn.ghosts(scene.env_idx).items():
                self._draw_ghost(name, data)
        if self._was_tracking and not scene.camera_tracking_enabled:
            # mjviser puts the world back, and would leave the cameras behind.
            for client in self.server.get_clients().values():
                client.camera.position = client.camera.position - before
        self._was_tracking = scene.camera_tracking_enabled

    def _draw_markers(self, name: str, markers: Sequence[Marker]) -> None:
        """Draw the markers of a command in place of its earlier ones."""
        scene, handles = self.server.scene, self._markers.setdefault(name, {})
        shown = set()
        for i, marker in enumerate(markers):
            # mjviser moves that part of the scene so that the robot stays in the middle.
            path = f"/fixed_bodies/commands/{name}/{type(marker).__name__}{i}"
            points, colors, radius = arrows_of(marker)
            if isinstance(marker, Sphere):
                if path not in handles:
                    color = tuple((np.array(marker.rgb) * 255).astype(int))
                    add = scene.add_icosphere
                    handles[path] = add(path, marker.radius, color=color, opacity=0.6)
                handles[path].position = marker.center
            elif not len(points):
                continue
            elif path in handles:
                handles[path].points, handles[path].colors = points, colors
            else:
                handles[path] = scene.add_arrows(
                    path, points, colors,
                    shaft_radius=radius, head_radius=2.5 * radius, head_length=5.0 * radius,
                )  # fmt: skip
            shown.add(path)
        for path, handle in handles.items():
            handle.visible = path in shown

    def _draw_ghost(self, name: str, data: mujoco.MjData) -> None:
        model = self._drawn.model
        if name not in self._ghost_bodies:
            bodies = self._ghost_bodies[name] = {}
            visible = (model.geom_group <= 2) & (model.body_weldid[model.geom_bodyid] != 0)
            for body in np.unique(model.geom_bodyid[visible]).tolist():
                geoms = np.flatnonzero(visible & (model.geom_bodyid == body)).tolist()
                shape, path = merge_geoms(model, geoms), f"/fixed_bodies/ghosts/{name}/{body}"
                bodies[body] = self.server.scene.add_mesh_simple(
                    path, shape.vertices, shape.faces, color=GHOST_RGBA[:3], opacity=GHOST_RGBA[3]
                )
        for body, handle in self._ghost_bodies[name].items():
            handle.position, handle.wxyz = data.xpos[body], data.xquat[body]

    def _update_panels(self, real_time_factor: float) -> None:
        """Show numbers and curves of the chosen environment."""
        index = self._scene.env_idx
        if self._policy_panel is not None:
            self._policy_panel.update()
        self._playback_panel.show(index, real_time_factor)
        for panel in self._command_panels:
            panel.show(index)
        self._reward_panel.show(index)


def ground_mesh(model: mujoco.MjModel) -> trimesh.Trimesh:
    """The terrain of a model in the world, with a checkerboard of 1 m squares."""
    field, geom = model.hfield(terrain.NAME), model.geom(terrain.NAME)
    half_x, half_y, depth, _ = field.size
    heights = field.data.reshape(field.nrow[0], field.ncol[0]) * depth
    rows, columns = heights.shape
    x, y = np.meshgrid(np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows))
    vertices = np.stack((x, y, heights), axis=-1).reshape(-1, 3) + geom.pos
    squares = Image.fromarray(np.array([[200, 170], [170, 200]], dtype=np.uint8)).convert("RGB")
    texture = squares.resize((256, 256), Image.Resampling.NEAREST)
    look = {"baseColorTexture": texture, "metallicFactor": 0.0, "roughnessFactor": 1.0}
    material = trimesh.visual.material.PBRMaterial(**look)
    visual = trimesh.visual.TextureVisuals(uv=vertices[:, :2] / 2.0, material=material)
    mesh = trimesh.Trimesh(vertices, _triangles(heights), visual=visual, process=False)
    mesh.remove_unreferenced_vertices()
    return mesh


def _triangles(heights: np.ndarray) -> np.ndarray:
    """Triangles over the grid, ``(triangles, 3)``, few of them where the ground is flat.

    They form strips between rows of nodes; a strip keeps the nodes at which one of its edges bends.
    """
    rows, columns = heights.shape
    bent = np.ones((rows, columns), dtype=bool)
    bent[:, 1:-1] = np.abs(np.diff(heights, n=2, axis=1)) > _STRAIGHT_M
    strip, column = np.nonzero(bent[:-1] | bent[1:])
    node = strip * columns + column
    same = strip[:-1] == strip[1:]
    left, right = node[:-1][same], node[1:][same]
    lower = np.stack((left, right, right + columns), axis=1)
    upper = np.stack((left, right + columns, left + columns), axis=1)
    return np.concatenate((lower, upper))
