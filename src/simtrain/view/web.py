"""The web viewer: a page with the robot in 3-D, its commands and rewards, served by viser."""

from __future__ import annotations

import math
import time

import numpy as np
import viser
from mjviser import ViserMujocoScene

from simtrain.env import terrain
from simtrain.env.commands import Arrow
from simtrain.env.env import Env
from simtrain.view.ground import ground_mesh
from simtrain.view.panels import CommandPanel, PlaybackPanel, Requests, RewardPanel
from simtrain.view.playback import Act, Playback
from simtrain.view.renderer import SHORTEST_ARROW, drawing_model, robot_radius
from simtrain.view.server import PageServer

_FRAME_S = 1.0 / 30.0
_PLOT_S = 0.25


class WebViewer:
    """Serves a page on which people watch a policy, and steer it."""

    def __init__(self, env: Env, act: Act, *, host: str, port: int, title: str) -> None:
        """Start the server.

        Args:
            env: the environments.
            act: the policy.
            host: address to listen on.
            port: port to listen on; 0 for any that is free.
            title: shown above the controls.

        Raises:
            ConfigError: somebody else listens there.
        """
        self._page = PageServer(host, port, title)
        self._server = self._page.viser
        self._playback = Playback(env, act)
        self._requests: Requests = Requests()
        self._arrows: dict[str, viser.ArrowsHandle] = {}
        self._build(env)

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._page.url

    def close(self) -> None:
        """Stop serving."""
        self._page.close()

    def run(self) -> None:
        """Play until interrupted; rests while nobody watches."""
        last = time.perf_counter()
        last_plot, steps_then = last, self._playback.time_s
        while True:
            while not self._requests.empty():
                self._requests.get()()
            now = time.perf_counter()
            if self._server.get_clients():
                self._playback.advance(min(now - last, 4 * _FRAME_S))
                self._draw()
                if now - last_plot >= _PLOT_S:
                    factor = (self._playback.time_s - steps_then) / (now - last_plot)
                    last_plot, steps_then = now, self._playback.time_s
                    self._tell(factor)
            last = now
            time.sleep(max(0.0, _FRAME_S - (time.perf_counter() - now)))

    def _build(self, env: Env) -> None:
        server = self._server
        model = drawing_model(env.cfg)
        if env.terrain is not None:
            # Drawn below: mjviser would stretch the floor's texture once over all of it.
            model.geom(terrain.NAME).rgba[3] = 0.0
        self._scene = ViserMujocoScene(server, model, env.num_envs)
        if env.terrain is not None:
            server.scene.add_mesh_trimesh(
                "/fixed_bodies/ground", ground_mesh(model), cast_shadow=False, receive_shadow=0.3
            )
        # Elsewhere all environments stand in the same place.
        self._scene.show_only_selected = env.terrain is None
        self._scene.set_refresh_handler(lambda: self._requests.put(self._draw))
        tabs = server.gui.add_tab_group()
        with tabs.add_tab("Play", icon=viser.Icon.PLAYER_PLAY):
            self._playback_panel = PlaybackPanel(server.gui, self._playback, self._requests)
            self._command_panels = []
            for name, term in env.commands.terms.items():
                with server.gui.add_folder(f"Command: {name}"):
                    self._command_panels.append(
                        CommandPanel(server.gui, env, name, term, self._requests)
                    )
            with server.gui.add_folder("Reward per second"):
                self._reward_panel = RewardPanel(server.gui, self._playback)
        with tabs.add_tab("Scene", icon=viser.Icon.VIDEO):
            self._scene.create_scene_gui(
                camera_distance=3.0 * robot_radius(model),
                camera_azimuth=float(model.vis.global_.azimuth),
                camera_elevation=-float(model.vis.global_.elevation),
            )
        with tabs.add_tab("Overlays", icon=viser.Icon.EYE):
            self._scene.create_overlay_gui()
        self._draw()
        self._tell(0.0)

    def _draw(self) -> None:
        """Show the present state of the chosen environment."""
        env, scene = self._playback.env, self._scene
        n, nbody = env.num_envs, scene.mj_model.nbody
        mocap = scene.mj_model.nmocap > 0
        scene.update_from_arrays(
            self._read("xpos").reshape(n, nbody, 3),
            self._read("xmat").reshape(n, nbody, 3, 3),
            mocap_pos=self._read("mocap_pos") if mocap else None,
            mocap_quat=self._read("mocap_quat") if mocap else None,
            qpos=self._read("qpos"),
            qvel=self._read("qvel"),
            ctrl=self._read("ctrl"),
        )
        for name, term in env.commands.terms.items():
            self._draw_arrows(name, term.arrows(scene.env_idx))

    def _draw_arrows(self, name: str, arrows: list[Arrow]) -> None:
        arrows = [a for a in arrows if math.dist(a.start, a.end) > SHORTEST_ARROW]
        shown = self._arrows.get(name)
        if shown is not None and len(shown.points) != len(arrows):
            self._arrows.pop(name).remove()
            shown = None
        if not arrows:
            return
        # mjviser moves the world so that the robot stays in the middle.
        offset = self._scene.fixed_bodies_frame.position
        points = (np.array([(a.start, a.end) for a in arrows]) + offset).astype(np.float32)
        colors = (np.array([a.rgb for a in arrows]) * 255).astype(np.uint8)
        if shown is not None:
            shown.points, shown.colors = points, colors
        else:
            self._arrows[name] = self._server.scene.add_arrows(
                f"/commands/{name}",
                points,
                colors,
                shaft_radius=0.01,
                head_radius=0.025,
                head_length=0.05,
            )

    def _read(self, field: str) -> np.ndarray:
        return self._playback.env.bind(field).cpu().numpy()

    def _tell(self, real_time_factor: float) -> None:
        """Show numbers and curves of the chosen environment."""
        index = self._scene.env_idx
        self._playback_panel.show(index, real_time_factor)
        for panel in self._command_panels:
            panel.show(index)
        self._reward_panel.show(index)
