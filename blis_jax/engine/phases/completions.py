"""Completions are reported to policies: to an instance's own at once, to the gateway's when the clock gets there.

The engine knows that a request completes when its last step begins. The gateway's policies receive the completion
before their first decision after the end of the step, in order of time.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from blis_jax.core.columns import choose, get
from blis_jax.core.types import NO_REQUEST
from blis_jax.core.views import AfterDecode
from blis_jax.engine.phases.departures.hand_over import answer_len
from blis_jax.engine.phases.policy_calls import request_view, told
from blis_jax.engine.writing import no_news, no_writes
from blis_jax.policies.contexts import Completion
from blis_jax.policies.contract import OverStep, PolicyStates
from blis_jax.tables.context import Context, Work, row
from blis_jax.tables.joined import place_of, record_of
from blis_jax.tables.state import News, State
from blis_jax.tables.writes import NewsWrite, SlotWrite, Writes


def tell_instance(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
    completes: jax.Array,
) -> tuple[Work, tuple[NewsWrite, ...]]:
    """Return the work after the instance's policies observed a completion, and its row for the gateway's policies."""
    mechanism, news = ctx.mechanism, (no_news(ctx),) if News in state else ()
    if not (mechanism.is_told_at_gateway or mechanism.is_told_in_instance):
        return work, news
    # an allocation for a last token that is attempted again is not another completion
    is_it = completes & (written.instance == instance)
    completion = _completion(ctx, state, work, instance, written)
    if mechanism.is_told_in_instance:
        after = (state.after for state in work.local)
        heard = told(mechanism.of_instance, ctx.params.policy.of_instance, after, completion)
        both = (OverStep(state.now, new) for state, new in zip(work.local, heard, strict=True))
        local = choose(is_it, PolicyStates(tuple(both)), work.local)
        work = dataclasses.replace(work, local=local)
    return work, tuple(
        NewsWrite(
            jnp.where(is_it, written.request, nothing.request),
            jnp.where(is_it, completion.completed_us, nothing.due),
            jnp.stack([completion.ttft_us, completion.e2e_us]),
        )
        for nothing in news
    )


def _completion(
    ctx: Context,
    state: State,
    work: Work,
    instance: jax.Array,
    written: SlotWrite,
) -> Completion:
    """Return the completion of the request that was just written."""
    request = written.request
    view = request_view(ctx, request)
    duration = work.lane.duration
    completed = work.lane.now + duration
    output_time = ctx.truncated(ctx.params.cluster.alpha[instance, 2]).astype(jnp.float64)
    record = ctx.memory.first_token_record(written)
    is_new = record == work.lane.num_records - 1  # not in the log yet
    logged = record_of(ctx, state, jnp.maximum(record, 0))
    token = jnp.where(is_new, completed, logged.start + logged.duration)
    arrival = view.arrival_us
    ttft = (token - arrival).astype(jnp.float64) + output_time
    num_tokens = answer_len(ctx, ctx.request(request), instance)
    outputs = jnp.maximum(num_tokens, 1)
    for hook in ctx.hooks:
        outputs = hook.outputs(ctx, state, written, outputs)
    each = outputs.astype(jnp.float64) * output_time
    e2e = (completed - arrival).astype(jnp.float64) + each
    if ctx.mechanism.defects.double_last_latency:
        e2e = e2e + duration.astype(jnp.float64) + output_time
    if AfterDecode in ctx.params.cluster:
        after = ctx.params.cluster[AfterDecode].us[instance]
        e2e = e2e + jnp.where(num_tokens > 0, after, 0).astype(jnp.float64)
    return Completion(
        request=view,
        instance=instance,
        num_output_tokens=num_tokens,
        ttft_us=jnp.where(record == NO_REQUEST, jnp.float64(-1.0), ttft),
        e2e_us=e2e,
        completed_us=completed,
    )


def next_news(state: State) -> jax.Array:
    """Return the time of the earliest completion that has not been reported to the gateway's policies."""
    return jnp.min(state[News].due[:-1])


def tell_gateway(ctx: Context, state: State) -> Writes:
    """Report the earliest completion to the gateway's policies; of several in one microsecond, the earlier request."""
    news = state[News]
    nothing = no_writes(ctx, state, ctx.spare_instance)
    request = jnp.argmin(news.due[:-1]).astype(jnp.int32)
    latencies = row(news.latencies, request)
    view, instance = request_view(ctx, request), place_of(state, request)
    completion = Completion(
        request=view,
        instance=instance,
        num_output_tokens=answer_len(ctx, ctx.request(request), instance),
        ttft_us=get(latencies, 0),
        e2e_us=get(latencies, 1),
        completed_us=news.due[request],
    )
    states = ctx.gateways.own_states(state.gateway, request)
    heard = told(ctx.mechanism.of_gateway, ctx.params.policy.of_gateway, states, completion)
    gateway = ctx.gateways.with_own(state.gateway, PolicyStates(heard), request)
    change = NewsWrite(request, ctx.never, jnp.zeros((2,), jnp.float64))
    return dataclasses.replace(nothing.having(change), gateway=gateway)
