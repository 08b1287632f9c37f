"""Loads, reloads and unloads all models, those of the configuration and those of the repository."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import Closed, ConfigError, HeadwayError, InvalidInput, ModelFailed
from headway.hosting.handles import Stages, Uses
from headway.hosting.registry import Registry, ServedModel, VersionEntry, unknown_model
from headway.hosting.repository.folder import ModelFolder, Repository
from headway.hosting.repository.listing import Listing, of_config, of_folder
from headway.hosting.repository.model_keeper import MakeServed, ModelKeeper
from headway.hosting.repository.settings import overridden
from headway.hosting.repository.turns import LoadTurns
from headway.hosting.tables import ModelOrigin, cache_dir_of
from headway.models.catalogue import AnyModel
from headway.observe.metrics import VersionReadiness
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.events import Crashed

if TYPE_CHECKING:
    from headway.hosting.repository.model_keeper import ManagedModel

_log = logging.getLogger(__name__)


class Keeper:
    """On entering `async with Keeper(config, make) as keeper:`, all models are known and none is
    loaded; `wait_started` loads them. On leaving, they are drained and closed."""

    def __init__(
        self,
        config: Config,
        make: MakeServed,
        *,
        given: Mapping[str, Callable[[], AnyModel]] | None = None,
        stages: Stages | None = None,
    ) -> None:
        """`given`: makes each model that is an object of the program, by its name in the
        configuration; all others are made from their targets. `stages`: records calls from one
        model to another."""
        self.registry = Registry()
        self._given = given or {}
        self._uses = Uses(self.registry, stages)
        self.registry.keeper = self
        self._config = config
        self._make = make
        self._models: dict[str, ModelKeeper] = {}
        self._configured: dict[str, ModelConfig] = {each.name: each for each in config.models}
        self._repository: Repository | None = None
        self._seen: dict[str, ModelFolder] = {}  # at the last look
        self._overrides: dict[str, Mapping[str, Any]] = {}  # by load requests
        self._attempts: dict[str, int] = {}  # reloads, by name: each makes unchanged files new
        self._turns = LoadTurns()
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._end_at: float | None = None
        self._is_started = False
        self._required = frozenset(self._configured)  # a model added later may fail on its own
        self._crash: Crashed | None = None
        self._has_crashed = asyncio.Event()

    async def __aenter__(self) -> Self:
        server = self._config.server
        if server.repository:
            self._repository = Repository(server.repository, settings=self._config.every_model)
            if not server.watch:
                self._repository.check()
            self._seen = await run_in_thread(self._repository.scan)
            twice = sorted(self._seen.keys() & self._configured.keys())
            if twice:
                raise ConfigError(
                    f"{twice[0]!r} is in the repository and in the configuration",
                    field="repository",
                )
        await self._tasks.__aenter__()
        if server.strict_readiness:
            self._required |= self._seen.keys()
        for name in [*self._configured, *self._seen]:
            self._add(name)
        self._set_aliases()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        for task in self._running:
            task.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            left_s = self._config.server.drain_s
            if self._end_at is not None:
                left_s = max(0.0, self._end_at - asyncio.get_running_loop().time())
            await asyncio.gather(*(model.close(left_s) for model in self._models.values()))

    def end_by(self, deadline: float) -> None:
        """Let requests under way run until `deadline`; without this call, for `drain_s`."""
        self._end_at = deadline

    async def wait_started(self) -> None:
        """Return once every model is loaded or has failed. Raises if a configuration has models and
        none of them could be loaded."""
        is_only = len(self._models) == 1 and self._repository is None
        for model in self._models.values():
            model.logs_failures = not is_only  # that one's failure is raised here
            model.start()
        self._is_started = True
        if self._repository is not None and self._config.server.watch:
            self._own(self._watch(self._repository))
        for model in list(self._models.values()):
            await model.wait_settled()
        if (
            self._models
            and self._repository is None
            and not any(model.answers for model in self._models.values())
        ):
            raise _fatal(list(self._models.values()))
        for model in self._models.values():
            model.logs_failures = True

    async def wait_crashed(self) -> NoReturn:
        """Raises once a model's scheduler has crashed: that is a bug of ours, and its remaining
        state cannot be trusted."""
        await self._has_crashed.wait()
        assert self._crash is not None
        error = self._crash.error
        message = f"{self._crash.model} crashed: {type(error).__name__}: {error}"
        raise Closed(message) from error

    def _note_crash(self, event: Crashed) -> None:
        self._crash = self._crash or event
        self._has_crashed.set()

    # ---- what front ends ask

    @property
    def is_ready(self) -> bool:
        """Whether all models are warm. One that was there at the start and could not be loaded
        keeps the server from getting traffic; one that was added later does not."""
        models = self._models.values()
        return (
            self._is_started
            and not self._stopping.is_set()
            and all(model.is_ready for model in models)
            and (not models or any(model.answers or not model.is_callable for model in models))
        )

    def names(self) -> list[str]:
        return [name for name, model in self._models.items() if model.is_listed]

    def readiness(self) -> list[VersionReadiness]:
        return [each for name in sorted(self._models) for each in self._models[name].readiness()]

    def index(self) -> list[VersionEntry]:
        return [entry for name in sorted(self._models) for entry in self._models[name].index()]

    def why_not(self, name: str, version: str) -> HeadwayError | None:
        model = self._models.get(name)
        if model is None:
            return unknown_model(name, version, self.registry.names())
        return model.why_not(version)

    async def wait_ready(self, name: str, version: str, timeout_s: float | None) -> ServedModel:
        return await self._model(name).wait_ready(version, timeout_s)

    async def load(self, name: str, override: Mapping[str, Any] | None = None) -> None:
        """Load the model as it is on disk, with these settings until the next load."""
        await self._discover(name)
        model = self._model(name)
        if override:
            await run_in_thread(self._check_override, name, override)
        self._overrides[name] = override or {}
        await model.load()

    async def _discover(self, name: str) -> None:
        """Add the model if it has come into the repository since the last scan."""
        if name in self._models or self._repository is None:
            return
        found = await run_in_thread(self._repository.find, name)
        if found is not None and name not in self._models:
            self._seen[name] = found
            self._add(name)

    def _check_override(self, name: str, override: Mapping[str, Any]) -> None:
        """Raises InvalidInput for wrong settings, before anything is changed."""
        folder = None if self._repository is None else self._repository.find(name)
        if name in self._configured or folder is None:
            raise InvalidInput(f"{name!r}: its settings are in the server's configuration")
        overridden(folder.config, override, name)

    async def reload(self, name: str) -> None:
        """Load the model again, whether or not anything has changed."""
        model = self._model(name)
        self._attempts[name] = self._attempts.get(name, 0) + 1
        await model.load()

    async def unload(self, name: str) -> None:
        self._model(name).unload()

    # ---- what has changed

    async def reload_configuration(self, config: Config) -> None:
        """Load new models, unload removed ones, and reload changed ones beside the version that is
        running."""
        before, self._configured = self._configured, {each.name: each for each in config.models}
        self._set_aliases()
        for name in sorted({*before, *self._configured}):
            old, new = before.get(name), self._configured.get(name)
            if old == new:
                continue
            if old is not None:
                await self._models[name].refresh()
            elif name in self._models:  # it was removed before, and still finishes its requests
                await self._models[name].refresh()
                self._models[name].start()
            else:
                self._add(name).start()

    def change(self, server: ServerConfig) -> None:
        """Use the new server's times from now on; where models come from stays the same."""
        self._config = msgspec.structs.replace(self._config, server=server)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Share between the keys' tenants by `weights`; `make` gives them to models loaded
        later."""
        for model in self._models.values():
            model.weigh(weights)

    async def _watch(self, repository: Repository) -> None:
        """A change counts once two scans in a row find the same: no file is read half copied."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.server.watch_every_s):
                    await self._stopping.wait()
            try:
                found = await run_in_thread(repository.scan)
            except ConfigError as error:  # unmounted for a moment: what is loaded is served
                _log.warning("the repository cannot be read: %s", error)
                continue
            before, self._seen = self._seen, found
            self._set_aliases()
            for name in {*found, *self._models} - {*self._configured}:
                if found.get(name) == before.get(name):
                    self._settle(name)
            self._forget_gone()

    def _set_aliases(self) -> None:
        """A model's own name comes before another's alias."""
        configs = {name: folder.config for name, folder in self._seen.items()} | self._configured
        self.registry.aliases = {
            alias: name for name, config in configs.items() for alias in config.aliases
        }

    def _settle(self, name: str) -> None:
        model = self._models.get(name)
        if model is None:
            self._add(name).start()
        else:
            model.show(self._listing(name, self._seen.get(name)))

    def _forget_gone(self) -> None:
        for name, model in list(self._models.items()):
            if model.is_gone and name not in self._seen and name not in self._configured:
                del self._models[name]

    # ---- one model

    def _model(self, name: str) -> ModelKeeper:
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name, "", self.registry.names())
        return model

    def _add(self, name: str) -> ModelKeeper:
        model = self._models[name] = ModelKeeper(
            name,
            lambda: self._look(name),
            registry=self.registry,
            make=self._made,
            turns=self._turns,
            is_asked=lambda: any(model.is_asked for model in self._models.values()),
            drain_s=lambda: self._config.server.drain_s,
            crashed=self._note_crash,
            is_required=name in self._required,
        )
        model.show(self._listing(name, self._seen.get(name)))
        self._own(model.run())
        return model

    def _made(
        self, config: ModelConfig, version: str, model: AnyModel, origin: ModelOrigin
    ) -> "ManagedModel":
        """The served model, bound to the other models that it calls."""
        self._uses.bind(config.name, model, [*self._models])
        return self._make(config, version, model, origin)

    def _own(self, life: Coroutine[Any, Any, None]) -> None:
        self._running = [task for task in self._running if not task.done()]
        self._running.append(self._tasks.create_task(_logged(life)))

    def _look(self, name: str) -> Listing | None:
        """The model as it is on disk; in a thread."""
        if name in self._configured or self._repository is None:
            return self._listing(name, None)
        return self._listing(name, self._repository.find(name))

    def _listing(self, name: str, folder: ModelFolder | None) -> Listing | None:
        attempt = self._attempts.get(name, 0)
        cache_dir = cache_dir_of(self._config.server.cache_dir)
        if name in self._configured:
            return of_config(
                self._configured[name],
                attempt=attempt,
                cache_dir=cache_dir,
                make=self._given.get(name),
            )
        if folder is None:
            return None
        return of_folder(
            folder, override=self._overrides.get(name), attempt=attempt, cache_dir=cache_dir
        )


async def _logged(life: Coroutine[Any, Any, None]) -> None:
    """An error in one of our own tasks is a bug of ours and ends the server. It is logged here,
    before the server drains."""
    try:
        await life
    except Exception as error:
        _log.critical("the server stops: a task of its own has failed", exc_info=error)
        raise


def _fatal(models: Sequence[ModelKeeper]) -> HeadwayError:
    """The one error that says why there is nothing to serve."""
    first = models[0]
    what = f"model {first.name!r} cannot be loaded: {_reason(first.error)}"
    if len(models) > 1:  # each has been logged
        what = f"none of the models can be loaded: {', '.join(each.name for each in models)}"
    if isinstance(first.error, ConfigError):
        return ConfigError(what if len(models) > 1 else f"model {first.name!r}: {first.error}")
    failure = ModelFailed(what)
    failure.__cause__ = first.error if len(models) == 1 else None
    return failure


def _reason(error: Exception | None) -> str:
    return str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"
