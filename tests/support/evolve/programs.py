"""Routing functions in Go, written for the tests: what the body between the marks is, and functions beside it."""

from __future__ import annotations

from tests.support.evolve.found_programs import FOUND
from tests.support.evolve.later_programs import LATER
from tests.support.evolve.searched_programs import SEARCHED

_TOP = """package sim

import (
	"fmt"
	"math"
	"math/rand"
)

var _ = math.Abs

type RoutingSnapshot struct {
	ID                                      string
	QueueDepth, BatchSize, InFlightRequests int
	KVUtilization, CacheHitRate             float64
	FreeKVBlocks                            int64
}

func (s RoutingSnapshot) EffectiveLoad() int { return s.QueueDepth + s.BatchSize + s.InFlightRequests }

type RoutingDecision struct {
	TargetInstance, Reason string
	Scores                 map[string]float64
}

func NewRoutingDecision(target, reason string) RoutingDecision {
	return RoutingDecision{TargetInstance: target, Reason: reason}
}

type observerFunc func(req *Request, targetInstance string)

type WeightedScoring struct {
	scorers   []scorerFunc
	weights   []float64
	observers []observerFunc
	rng       *rand.Rand
}

"""
_ROUTE = """func (ws *WeightedScoring) Route(req *Request, state *RouterState) RoutingDecision {
	snapshots := state.Snapshots
	if len(snapshots) == 0 {
		panic("no snapshots")
	}
	// EVOLVE-BLOCK-START
"""
_END = """
	// EVOLVE-BLOCK-END
	for _, obs := range ws.observers {
		obs(req, snapshots[bestIdx].ID)
	}
	return NewRoutingDecision(snapshots[bestIdx].ID, fmt.Sprintf("chosen (%d)", bestIdx))
}
"""
_BEST = """
	bestIdx, bestScore := 0, math.Inf(-1)
	for i, snap := range snapshots {
		if scores[snap.ID] > bestScore {
			bestScore = scores[snap.ID]
			bestIdx = i
		}
	}
"""


def whole(name: str) -> str:
    """Return a program as a whole `routing.go`."""
    helpers, block = PROGRAMS[name]
    used = [f'"{one}"' for one in ("slices", "sort", "strings") if f"{one}." in helpers + block]
    top = _TOP.replace('"math/rand"', "\n\t".join(['"math/rand"', *used]))
    return top + helpers + _ROUTE + block + _END


PROGRAMS: dict[str, tuple[str, str]] = {
    # best two, reset of the list of ties, ties by the stream
    "ties": ("", """
	bestScore := -math.MaxFloat64
	var tied []int
	for i, snap := range snapshots {
		score := -float64(snap.EffectiveLoad()) / 3.0
		if score > bestScore {
			bestScore = score
			tied = []int{i}
		} else if score == bestScore {
			tied = append(tied, i)
		}
	}
	bestIdx := tied[len(tied)-1]
	if len(tied) > 1 && ws.rng != nil {
		bestIdx = tied[ws.rng.Intn(len(tied))]
		if len(tied) > 2 {
			bestIdx = tied[ws.rng.Intn(3)]
		}
	}
"""),
    # ties by a second number and by ID as a text; a sum in order; integers that are divided
    "order": ("", """
	bestIdx := 0
	best := snapshots[0]
	total := 0.0
	n := len(snapshots)
	for i := 1; i < n; i++ {
		snap := &snapshots[i]
		total += snap.KVUtilization * 0.1
		if snap.InFlightRequests/2 < best.InFlightRequests/2 ||
			(snap.InFlightRequests/2 == best.InFlightRequests/2 && snap.ID > best.ID) {
			best = *snap
			bestIdx = i
		}
	}
	if total > 0.25 && (n%3) == 2 {
		bestIdx = n - 1
	}
"""),
    # switch with several texts, a table by class, a session, constants that are exact
    "classes": ("const slack = 1.0 / 3.0\n\n", """
	limits := map[string]float64{"critical": 0.2, "standard": 0.5, "batch": 2}
	limit, known := limits[req.SLOClass]
	if !known {
		limit = 1 - slack
	}
	const tenth = 0.1 + 0.2
	var load float64
	switch req.SLOClass {
	case "critical", "standard":
		load = 2.0
	case "batch":
		load = slack
	default:
		load = tenth
		if req.SessionID != "" {
			load *= 3
		}
	}
	scores := make(map[string]float64)
	for i := range snapshots {
		id := snapshots[i].ID
		scores[id] = limit - load*float64(snapshots[i].QueueDepth)
		scores[id] /= 1 + float64(i)
	}
""" + _BEST),
    # functions beside it, early returns, several results, a closure
    "helpers": ("""func clamp(x, low, high float64) float64 {
	if x < low {
		return low
	}
	if x > high {
		return high
	}
	return x
}

func ends(snaps []RoutingSnapshot) (int, int) {
	least, most := snaps[0].InFlightRequests, 0
	for _, s := range snaps {
		if s.InFlightRequests > most {
			most = s.InFlightRequests
		}
		least = min(least, s.InFlightRequests)
	}
	return least, most
}

func isBusy(s RoutingSnapshot, limit int) bool {
	return s.QueueDepth+s.BatchSize > limit
}

""", """
	least, most := ends(snapshots)
	spread := float64(most-least) + 1e-3
	penalty := func(s RoutingSnapshot) float64 {
		if isBusy(s, 4) {
			return 0.25
		}
		return 0
	}
	scores := make(map[string]float64, len(snapshots))
	for _, snap := range snapshots {
		scores[snap.ID] = clamp(float64(most-snap.InFlightRequests)/spread, 0.1, 0.9) - penalty(snap)
	}
""" + _BEST),
    # scorers and weights, a copy of the weights, one row by name, presence in a map
    "scorers": ("", """
	aw := make([]float64, len(ws.weights))
	copy(aw, ws.weights)
	sum := 0.0
	for i := range aw {
		if i == 0 && len(req.InputTokens) > 1000 {
			aw[i] *= 0.5
		}
		sum += aw[i]
	}
	all := make([]map[string]float64, len(ws.scorers))
	for i, scorer := range ws.scorers {
		all[i] = scorer(req, snapshots)
	}
	prefix := all[0]
	warm := make(map[string]bool)
	for _, snap := range snapshots {
		if prefix[snap.ID] >= 0.5 {
			warm[snap.ID] = true
		}
	}
	scores := map[string]float64{}
	for i, weight := range aw {
		for _, snap := range snapshots {
			s := math.Max(0, math.Min(1, all[i][snap.ID]))
			scores[snap.ID] += s * weight / sum
		}
	}
	if len(warm) > 1 {
		for _, snap := range snapshots {
			if _, ok := warm[snap.ID]; !ok {
				scores[snap.ID] -= 0.5
				continue
			}
			scores[snap.ID] += 0.125
		}
	}
""" + _BEST),
    # passes that end early, a pass that looks at all others, a slice of candidates
    "nested": ("", """
	rank := make([]int, len(snapshots))
	for i, a := range snapshots {
		for j, b := range snapshots {
			if i == j {
				continue
			}
			if b.QueueDepth < a.QueueDepth || (b.QueueDepth == a.QueueDepth && j < i) {
				rank[i]++
			}
		}
	}
	candidates := make([]int, 0, len(snapshots))
	for i := range snapshots {
		if rank[i] < 2 {
			candidates = append(candidates, i)
		}
		if len(candidates) == 2 {
			break
		}
	}
	bestIdx := candidates[0]
	for k := 1; k < len(candidates); k++ {
		idx := candidates[k]
		if snapshots[idx].KVUtilization <= snapshots[bestIdx].KVUtilization {
			bestIdx = idx
		}
	}
"""),
    # names that hide others, blocks, a swap, a count down, IDs kept in a slice
    "names": ("", """
	x, y := 1, 2
	x, y = y, x+y
	{
		x := 10
		x += y
		y += x
	}
	first, second := "", ""
	lowest, next := 1<<31-1, 1<<31-1
	for _, snap := range snapshots {
		load := snap.EffectiveLoad()*x + y
		if load < lowest {
			second, next = first, lowest
			first, lowest = snap.ID, load
		} else if load < next {
			second, next = snap.ID, load
		}
	}
	if second != "" && next-lowest <= 1 {
		y--
		first = second
	}
	bestIdx := 0
	for i := range snapshots {
		if snapshots[i].ID == first {
			bestIdx = i
			break
		}
	}
	_ = y
"""),
    # a return in a branch, a decision as a literal, exponentials, flags
    "returns": ("""func pick(snaps []RoutingSnapshot, limit float64) int {
	for i, s := range snaps {
		if s.KVUtilization < limit && s.InFlightRequests == 0 {
			return i
		}
	}
	return -1
}

""", """
	found := false
	idle := pick(snapshots, 0.75)
	scores := make([]float64, len(snapshots))
	worst := 0.0
	for i := 0; i < len(snapshots); i++ {
		scores[i] = math.Exp(-0.5*float64(snapshots[i].BatchSize)) + math.Sqrt(snapshots[i].KVUtilization)
		if snapshots[i].KVUtilization > 0.9 {
			found = true
		}
		if s := scores[i]; s > worst && snapshots[i].QueueDepth > 0 {
			worst = s
		}
	}
	bestIdx := 0
	if idle >= 0 && !found {
		bestIdx = idle
	} else {
		for i, score := range scores {
			if score < scores[bestIdx] || (found && score == worst) {
				bestIdx = i
			}
		}
	}
"""),
    # order of passes matters: a running number decides about the next pass; the last of equals
    "running": ("", """
	budget := 6
	bestIdx := 0
	most := -1
	taken := make([]bool, len(snapshots))
	for i, snap := range snapshots {
		if snap.BatchSize > budget {
			continue
		}
		budget -= snap.BatchSize
		taken[i] = true
	}
	count := 0
	for i, snap := range snapshots {
		if taken[i] {
			count++
		}
		if taken[i] && int64(snap.QueueDepth) <= snap.FreeKVBlocks && snap.QueueDepth >= most {
			most = snap.QueueDepth
			bestIdx = i
		}
	}
	if count == 0 {
		bestIdx = len(snapshots) / 2
	}
"""),
    # a map that is ranged over where the order is all the same, a key that is not there
    "maps": ("", """
	scores := make(map[string]float64)
	for _, snap := range snapshots {
		if snap.KVUtilization < 0.9 {
			scores[snap.ID] = 1.0 - snap.KVUtilization
		}
	}
	for id := range scores {
		scores[id] *= 2.0
	}
	top := 0.0
	count := 0
	for _, s := range scores {
		if s > top {
			top = s
		}
		count++
	}
	missing := scores[""]
	bestIdx := len(snapshots) - 1
	for i := len(snapshots) - 1 - count; i < len(snapshots); i++ {
		if i >= 0 && scores[snapshots[i].ID] == top+missing {
			bestIdx = i
		}
	}
"""),
    # names of Go that the reader's own words use; a table by place; results of a declared type
    "words": ("""func weight(class string) float64 {
	switch class {
	case "critical":
		return 2
	case "batch", "background":
		return 0.5
	}
	return 1
}

""", """
	at, put, over, done := 1, 0, weight(req.SLOClass), false
	w := [3]float64{0.5, 0.25, 0.125}
	winner, lanes := -1.0, 0
	for i, real := range snapshots {
		f := []float64{float64(real.QueueDepth), real.KVUtilization, float64(real.BatchSize)}
		whole := 0.0
		for j, x := range f {
			whole += x * w[j]
		}
		if times := 1.0 / (1.0 + over*whole); times > winner {
			winner = times
			lanes = i
			done = true
		}
	}
	bestIdx := lanes
	if done {
		bestIdx = (lanes*at + put) % len(snapshots)
	}
"""),
    # BLIS's weighted routing of August 2026
    "weighted": ("", """
	scores := make(map[string]float64, len(snapshots))
	for k, scorer := range ws.scorers {
		said := scorer(req, snapshots)
		for _, snap := range snapshots {
			s := said[snap.ID]
			if s < 0 {
				s = 0
			}
			if s > 1 {
				s = 1
			}
			scores[snap.ID] += s * ws.weights[k]
		}
	}
	best := -1.0
	for _, snap := range snapshots {
		best = math.Max(best, scores[snap.ID])
	}
	tied := make([]int, 0)
	for i, snap := range snapshots {
		if scores[snap.ID] == best {
			tied = append(tied, i)
		}
	}
	bestIdx := tied[0]
	if len(tied) > 1 {
		bestIdx = tied[ws.rng.Intn(len(tied))]
	}
"""),
}  # fmt: skip
PROGRAMS |= LATER | SEARCHED | FOUND
