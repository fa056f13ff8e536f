"""Routing functions in Go as program searches write them, with idioms that were once refused or misread."""

from __future__ import annotations

FOUND: dict[str, tuple[str, str]] = {
    # a helper whose first return has constants, several results
    "zscores": (
        """func meanStd(xs []float64) (float64, float64) {
	n := float64(len(xs))
	if n == 0 {
		return 0, 0
	}
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	mean := sum / n
	varsum := 0.0
	for _, x := range xs {
		d := x - mean
		varsum += d * d
	}
	return mean, math.Sqrt(varsum / n)
}

""",
        """
	loads := make([]float64, len(snapshots))
	kvs := make([]float64, len(snapshots))
	for i, s := range snapshots {
		loads[i] = float64(s.EffectiveLoad())
		kvs[i] = s.KVUtilization
	}
	ml, sl := meanStd(loads)
	mk, sk := meanStd(kvs)
	bestIdx := 0
	best := math.Inf(1)
	for i := range snapshots {
		z := 0.0
		if sl > 1e-9 {
			z += (loads[i] - ml) / sl
		}
		if sk > 1e-9 {
			z += 0.5 * (kvs[i] - mk) / sk
		}
		if z < best-1e-12 {
			best = z
			bestIdx = i
		}
	}
""",
    ),
    # numbers with a name and methods, iota, a switch of conditions
    "iota_tiers": (
        """type urgency int

const (
	low urgency = iota
	normal
	high
	numTiers
)

const (
	baseBonus = 1 << iota
	doubleBonus
	quadBonus
)

func tierOf(class string, tokens int) urgency {
	switch {
	case class == "critical":
		return high
	case class == "standard" && tokens < 1024, tokens < 128:
		return normal
	}
	return low
}

func (u urgency) bonus() int {
	switch u {
	case high:
		return quadBonus
	case normal:
		return doubleBonus
	default:
		return baseBonus
	}
}

""",
        """
	tier := tierOf(req.SLOClass, len(req.InputTokens))
	penalty := [numTiers]float64{0.1, 0.3, 0.9}[tier]
	bestIdx, bestScore := 0, math.Inf(-1)
	for i, snap := range snapshots {
		score := float64(tier.bonus()) - penalty*float64(snap.QueueDepth+snap.InFlightRequests)
		score -= float64(snap.BatchSize) / 8
		if score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
""",
    ),
    # a map whose keys come in any order, with a rule for equal values
    "range_map": (
        "",
        """
	scores := make(map[string]float64, len(snapshots))
	index := make(map[string]int, len(snapshots))
	for i, snap := range snapshots {
		scores[snap.ID] = 1/(1+float64(snap.EffectiveLoad())) + 1e-6*float64(len(snapshots)-i)
		index[snap.ID] = i
	}
	best, bestID := -1.0, ""
	for id, s := range scores {
		if s > best || (s == best && id < bestID) {
			best, bestID = s, id
		}
	}
	bestIdx := index[bestID]
""",
    ),
    # a slice that is filtered in its own cells
    "filter_in_place": (
        "",
        """
	cands := make([]int, len(snapshots))
	for i := range cands {
		cands[i] = i
	}
	kept := cands[:0]
	for _, i := range cands {
		if snapshots[i].KVUtilization < 0.9 {
			kept = append(kept, i)
		}
	}
	if len(kept) == 0 {
		kept = append(kept, 0)
	}
	bestIdx := cands[0]
	for _, i := range kept[1:] {
		if snapshots[i].QueueDepth < snapshots[bestIdx].QueueDepth {
			bestIdx = i
		}
	}
""",
    ),
    # functions of any type
    "generics": (
        """type number interface {
	~int | ~int64 | ~float64
}

func argMin[T number](xs []T) int {
	best := 0
	for i := 1; i < len(xs); i++ {
		if xs[i] < xs[best] {
			best = i
		}
	}
	return best
}

func mapOf[T any, U any](xs []T, f func(T) U) []U {
	out := make([]U, 0, len(xs))
	for _, x := range xs {
		out = append(out, f(x))
	}
	return out
}

""",
        """
	loads := mapOf(snapshots, func(s RoutingSnapshot) int { return s.EffectiveLoad() })
	kv := mapOf(snapshots, func(s RoutingSnapshot) float64 { return s.KVUtilization })
	bestIdx := argMin(loads)
	if j := argMin(kv); kv[bestIdx] > 0.9 && kv[j] < 0.8 {
		bestIdx = j
	}
""",
    ),
    # a list that begins anew, and a hash that wraps
    "hash_ties": (
        """func fnv1a(data string, seed uint32) uint32 {
	h := seed ^ 2166136261
	for i := 0; i < len(data); i++ {
		h ^= uint32(data[i])
		h *= 16777619
	}
	return h
}

""",
        """
	var tied []int
	minLoad := math.MaxInt
	for i, snap := range snapshots {
		switch load := snap.EffectiveLoad(); {
		case load < minLoad:
			minLoad = load
			tied = append(tied[:0], i)
		case load == minLoad:
			tied = append(tied, i)
		}
	}
	h := fnv1a(req.SLOClass, uint32(len(req.InputTokens)))
	bestIdx := tied[int(h%uint32(len(tied)))]
""",
    ),
    # loops that divide a number
    "digits": (
        """func digitSum(n int) int {
	sum := 0
	for n > 0 {
		sum += n % 10
		n /= 10
	}
	return sum
}

func log2(n int) (bits int) {
	for ; n > 1; n >>= 1 {
		bits++
	}
	return
}

""",
        """
	start := (digitSum(len(req.InputTokens)) + log2(len(req.InputTokens)+1)) % len(snapshots)
	bestIdx := start
	for k := 0; k < len(snapshots); k++ {
		i := (start + k) % len(snapshots)
		if snapshots[i].EffectiveLoad() < snapshots[bestIdx].EffectiveLoad() {
			bestIdx = i
		}
	}
""",
    ),
    # whole and real numbers with names, one method on each
    "conversions": (
        """type blocks int64
type share float64

func (b blocks) share(total blocks) share {
	if total == 0 {
		return 0
	}
	return share(float64(b) / float64(total))
}

""",
        """
	var total blocks
	for _, s := range snapshots {
		total += blocks(s.FreeKVBlocks)
	}
	need := blocks(math.Ceil(float64(len(req.InputTokens)) / 16.0))
	bestIdx := 0
	var bestShare share = -1
	for i, s := range snapshots {
		free := blocks(s.FreeKVBlocks)
		if free < need && int(free) != 0 {
			continue
		}
		sh := free.share(total) - share(s.QueueDepth)/share(100)
		if sh > bestShare {
			bestShare, bestIdx = sh, i
		}
	}
""",
    ),
    # a sort by hand, and a search by halves
    "two_pointers": (
        "",
        """
	idx := make([]int, 0, len(snapshots))
	for i := range snapshots {
		pos := len(idx)
		idx = append(idx, i)
		for pos > 0 && snapshots[idx[pos-1]].EffectiveLoad() > snapshots[idx[pos]].EffectiveLoad() {
			idx[pos-1], idx[pos] = idx[pos], idx[pos-1]
			pos--
		}
	}
	l, r := 0, len(idx)-1
	for l < r {
		mid := (l + r) / 2
		if snapshots[idx[mid]].KVUtilization > 0.9 {
			l = mid + 1
		} else {
			r = mid
		}
	}
	bestIdx := idx[l]
""",
    ),
    # constants that are shifted take the type of what they meet
    "saturating": (
        "",
        """
	const cap = 32
	sat := func(x int) int {
		if x > cap {
			return cap
		} else if x < 0 {
			return 0
		}
		return x
	}
	best, bestIdx := math.MaxInt32, 0
	var ties uint64
	for i, s := range snapshots {
		key := sat(s.QueueDepth)<<6 | sat(s.BatchSize)
		if key == best {
			ties |= 1 << uint(i)
		} else if key < best {
			best, bestIdx, ties = key, i, 1<<uint(i)
		}
	}
	for i := len(snapshots) - 1; i >= 0; i-- {
		if ties&(1<<uint(i)) != 0 && snapshots[i].KVUtilization+0.2 < snapshots[bestIdx].KVUtilization {
			bestIdx = i
		}
	}
""",
    ),
    # words that are put together for a reader
    "reasons": (
        "",
        """
	var why strings.Builder
	parts := []string{}
	bestIdx, bestScore := 0, -1e18
	for i, snap := range snapshots {
		score := -float64(snap.EffectiveLoad())
		why.WriteString(fmt.Sprintf("%s:%.3f;", snap.ID, score))
		parts = append(parts, fmt.Sprintf("%d", i))
		if score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
	_, _ = why.String(), strings.Join(parts, ",")
""",
    ),
    # lists in a map
    "grouped": (
        "",
        """
	groups := map[int][]int{}
	for i, s := range snapshots {
		g := s.EffectiveLoad() / 4
		groups[g] = append(groups[g], i)
	}
	lowest := -1
	for g := range groups {
		if lowest == -1 || g < lowest {
			lowest = g
		}
	}
	bestIdx := groups[lowest][0]
	for _, i := range groups[lowest] {
		if snapshots[i].FreeKVBlocks > snapshots[bestIdx].FreeKVBlocks {
			bestIdx = i
		}
	}
""",
    ),
}
