"""Whatever is offered, wanted and fails: who has answered goes on answering, and only who is ready
answers."""

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.items import Wait
from headway.core.lifecycle.versions import (
    Lifecycle,
    Load,
    Offer,
    Retire,
    VersionPolicy,
    VersionState,
)

offers = st.dictionaries(st.integers(1, 4), st.sampled_from("ab"), max_size=4).map(
    lambda found: [Offer(version, fingerprint) for version, fingerprint in found.items()]
)
policies = st.one_of(
    st.integers(1, 3).map(lambda count: VersionPolicy(latest=count)),
    st.just(VersionPolicy(latest=None)),
    st.sets(st.integers(1, 4), min_size=1).map(lambda some: VersionPolicy(listed=tuple(some))),
)


class LifecycleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.policy = VersionPolicy()
        self.unload_after_s: float | None = None
        self.life = Lifecycle()
        self.offered: list[Offer] = []
        self.loading: dict[int, Offer] = {}
        self.ready: dict[int, Offer] = {}
        self.draining: set[int] = set()
        self.ids: set[int] = set()
        self.must_answer = False

    def obey(self) -> None:
        for _ in range(100):
            match self.life.next_action(self.now):
                case Load(id_, offer):
                    assert not self.loading, "one at a time"
                    assert id_ not in self.ids
                    assert offer in self.offered
                    self.ids.add(id_)
                    self.loading[id_] = offer
                case Retire(id_):
                    del self.ready[id_]  # only who was ready, and only once
                    self.draining.add(id_)
                case Wait(until):
                    assert until > self.now, "it would be asked for ever"
                    break
        else:
            raise AssertionError("it never comes to rest")
        if not self.life.is_wanted or not self.policy.choose(each.version for each in self.offered):
            self.must_answer = False

    # ---- what happens

    @rule(found=offers)
    def offer(self, found: list[Offer]) -> None:
        self.offered = found
        self.life.offer(found)
        self.obey()

    @rule(policy=policies, on_request=st.booleans(), idle_s=st.sampled_from([None, 20.0]))
    def configure(self, policy: VersionPolicy, on_request: bool, idle_s: float | None) -> None:
        self.policy = policy
        self.unload_after_s = idle_s
        self.life.configure(policy, is_on_request=on_request, unload_after_s=idle_s)
        self.obey()

    @rule()
    def want(self) -> None:
        self.life.want()
        self.obey()

    @rule()
    def wake(self) -> None:
        self.life.wake(self.now)
        self.obey()

    @rule()
    def dismiss(self) -> None:
        self.life.dismiss()
        self.obey()
        assert not self.ready

    @precondition(lambda self: self.loading)
    @rule()
    def warming(self) -> None:
        self.life.warming(next(iter(self.loading)))
        self.obey()

    @precondition(lambda self: self.loading)
    @rule()
    def loaded(self) -> None:
        id_, offer = self.loading.popitem()
        self.ready[id_] = offer
        self.life.ready(id_, self.now)
        self.must_answer = self.life.is_wanted
        self.obey()

    @precondition(lambda self: self.loading)
    @rule()
    def fails(self) -> None:
        id_, _ = self.loading.popitem()
        self.life.failed(id_, "it did", self.now)
        self.obey()

    @precondition(lambda self: self.draining)
    @rule()
    def drained(self) -> None:
        self.life.closed(self.draining.pop())
        self.obey()

    @rule()
    def used(self) -> None:
        self.life.used(self.now)
        self.obey()

    @rule(seconds=st.sampled_from([0.1, 5.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.obey()

    # ---- what holds

    @invariant()
    def only_ready_copies_answer(self) -> None:
        assert self.life.resolve() in {None, *self.ready}
        for version, id_ in self.life.serving().items():
            assert self.ready[id_].version == version

    @invariant()
    def who_has_answered_goes_on_answering_until_it_is_unloaded(self) -> None:
        if self.must_answer:
            assert self.life.resolve() is not None

    @invariant()
    def nothing_runs_twice(self) -> None:
        versions = [offer.version for offer in self.ready.values()]
        assert len(versions) == len(set(versions))

    @invariant()
    def the_index_tells_the_truth(self) -> None:
        ready = {each.version for each in self.life.index() if each.state is VersionState.READY}
        assert ready == set(self.life.serving())
        assert {each.version for each in self.offered} <= {
            each.version for each in self.life.index()
        }

    @invariant()
    def it_is_known_when_to_come_back(self) -> None:
        after_s = self.life.retry_after_s(self.now)
        assert after_s is None or 0 < after_s < math.inf


TestLifecycle = LifecycleMachine.TestCase
