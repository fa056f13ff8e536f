"""Further routing functions in Go, as a language model writes them: structs, sorts, and what goes with them."""

from __future__ import annotations

LATER: dict[str, tuple[str, str]] = {
    # a struct that is assigned as a whole
    "struct_best": ("", """
	type candidate struct {
		idx   int
		score float64
	}
	best := candidate{idx: 0, score: math.Inf(-1)}
	for i, snap := range snapshots {
		c := candidate{i, -float64(snap.EffectiveLoad())}
		if c.score > best.score {
			best = c
		}
	}
	bestIdx := best.idx
"""),
    # structs in a slice, put in order by two fields
    "sort_slice": ("", """
	type cand struct {
		id    string
		idx   int
		score float64
		load  int
	}
	cands := make([]cand, 0, len(snapshots))
	for i, snap := range snapshots {
		s := 0.0
		if snap.KVUtilization < 0.9 {
			s = 1.0 / (1.0 + float64(snap.QueueDepth))
		}
		cands = append(cands, cand{id: snap.ID, idx: i, score: s, load: snap.EffectiveLoad()})
	}
	sort.Slice(cands, func(a, b int) bool {
		if cands[a].score != cands[b].score {
			return cands[a].score > cands[b].score
		}
		return cands[a].load < cands[b].load
	})
	bestIdx := cands[0].idx
"""),
    # a slice of numbers by what they point at, stable
    "sort_idx": ("", """
	order := make([]int, len(snapshots))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		return snapshots[order[i]].QueueDepth < snapshots[order[j]].QueueDepth
	})
	bestIdx := order[0]
	if len(order) > 1 && snapshots[order[0]].KVUtilization > 0.9 {
		bestIdx = order[1]
	}
"""),
    # numbers in ascending order
    "median": ("", """
	loads := make([]float64, 0, len(snapshots))
	for _, s := range snapshots {
		loads = append(loads, float64(s.EffectiveLoad()))
	}
	sort.Float64s(loads)
	median := loads[len(loads)/2]
	bestIdx := 0
	bestScore := math.Inf(-1)
	for i, s := range snapshots {
		v := -math.Abs(float64(s.EffectiveLoad()) - median)
		if v > bestScore {
			bestScore, bestIdx = v, i
		}
	}
"""),
    # constants in a block, a struct as a parameter, a range over an int
    "constblock": ("""const (
	kvHigh   = 0.9
	loadBias float64 = 0.5
)

type weights struct{ a, b float64 }

func pick(w weights, snap RoutingSnapshot) float64 {
	return w.a/(1+float64(snap.QueueDepth)) + w.b*(1-snap.KVUtilization)
}

""", """
	const (
		alpha = 0.7
		beta  = 1 - alpha
	)
	w := weights{a: alpha, b: beta}
	if req.SLOClass == "critical" {
		w.a *= 2
	}
	bestIdx, bestScore := 0, -1e18
	for i := range len(snapshots) {
		snap := snapshots[i]
		score := pick(w, snap)
		if snap.KVUtilization > kvHigh {
			score -= loadBias
		}
		if score > bestScore {
			bestScore = score
			bestIdx = i
		}
	}
"""),
    # a map of structs, with literals by position
    "mapstruct": ("", """
	type stat struct{ q, b int }
	stats := make(map[string]stat, len(snapshots))
	for _, s := range snapshots {
		stats[s.ID] = stat{s.QueueDepth, s.BatchSize}
	}
	bestIdx := 0
	best := math.MaxFloat64
	for i, s := range snapshots {
		st := stats[s.ID]
		c := float64(st.q)*2 + float64(st.b)
		if c < best {
			best = c
			bestIdx = i
		}
	}
"""),
    # a switch without a value, words in a map, a presence
    "switchtrue": ("", """
	n := len(req.InputTokens)
	var penalty float64
	switch {
	case n > 2000:
		penalty = 0.8
	case n > 500 && req.SLOClass != "batch":
		penalty = 0.4
	default:
		penalty = 0.1
	}
	scores := make(map[string]float64, len(snapshots))
	reasons := make(map[string]string)
	for _, snap := range snapshots {
		scores[snap.ID] = 1 - penalty*float64(snap.QueueDepth)
		reasons[snap.ID] = fmt.Sprintf("q=%d", snap.QueueDepth)
	}
	bestIdx := 0
	bestScore := scores[snapshots[0].ID]
	for i := 1; i < len(snapshots); i++ {
		if s, ok := scores[snapshots[i].ID]; ok && s > bestScore {
			bestScore = s
			bestIdx = i
		}
	}
	reason := reasons[snapshots[bestIdx].ID]
	_ = reason
"""),
    # copies of structs that change, and do not change what they were copied from
    "mutcopy": ("", """
	type acc struct {
		sum   float64
		count int
	}
	var total acc
	parts := make([]acc, len(snapshots))
	for i, snap := range snapshots {
		p := parts[i]
		p.sum += snap.KVUtilization
		p.count++
		if snap.QueueDepth > 1 {
			parts[i] = p
		}
		total.sum += p.sum
		total.count += p.count
	}
	mean := total.sum / float64(total.count)
	bestIdx := 0
	for i := range parts {
		if parts[i].count > 0 && parts[i].sum < mean {
			bestIdx = i
		}
	}
	for _, p := range parts {
		p.count = 100
		bestIdx += p.count - 100
	}
"""),
    # structs that change places
    "swap": ("", """
	type item struct {
		k int
		v float64
	}
	items := make([]item, 0)
	for i, s := range snapshots {
		items = append(items, item{k: i, v: s.KVUtilization})
	}
	for i := 0; i < len(items); i++ {
		for j := i + 1; j < len(items); j++ {
			if items[j].v < items[i].v {
				items[i], items[j] = items[j], items[i]
			}
		}
	}
	bestIdx := items[0].k
"""),
    # a break that leaves a switch in a loop
    "switchbreak": ("", """
	bestIdx := 0
	for i, s := range snapshots {
		switch req.SLOClass {
		case "critical":
			if s.QueueDepth > 3 {
				break
			}
			bestIdx = i
		default:
			bestIdx = 0
		}
	}
"""),
    # a sort under a branch, a part of a slice, a draw
    "sortfilter": ("", """
	type cand struct {
		idx   int
		score float64
	}
	cands := []cand{}
	for i, snap := range snapshots {
		if snap.QueueDepth > 2 && len(snapshots) > 2 {
			continue
		}
		cands = append(cands, cand{i, float64(snap.InFlightRequests) - snap.KVUtilization})
	}
	bestIdx := len(snapshots) - 1
	if len(cands) > 1 {
		sort.SliceStable(cands, func(i, j int) bool { return cands[i].score < cands[j].score })
		top := cands
		if len(top) > 2 {
			top = top[:2]
		}
		if top[0].score == top[1].score {
			bestIdx = top[ws.rng.Intn(2)].idx
		} else {
			bestIdx = top[0].idx
		}
	} else if len(cands) == 1 {
		bestIdx = cands[0].idx
	}
"""),
    # a comparison of elements
    "slicesfn": ("", """
	type item struct {
		k int
		v float64
	}
	items := make([]item, 0, 4)
	for i, s := range snapshots {
		items = append(items, item{k: i, v: -float64(s.BatchSize)})
	}
	slices.SortFunc(items, func(a, b item) int {
		if a.v < b.v {
			return -1
		}
		if a.v > b.v {
			return 1
		}
		return b.k - a.k
	})
	bestIdx := items[0].k
"""),
    # snapshots in a slice, all of them where none is left
    "filter": ("", """
	var candidates []RoutingSnapshot
	for _, snap := range snapshots {
		if snap.KVUtilization < 0.85 {
			candidates = append(candidates, snap)
		}
	}
	if len(candidates) == 0 {
		candidates = snapshots
	}
	best := candidates[0]
	for _, c := range candidates[1:] {
		if c.EffectiveLoad() < best.EffectiveLoad() {
			best = c
		}
	}
	bestIdx := 0
	for i, snap := range snapshots {
		if snap.ID == best.ID {
			bestIdx = i
			break
		}
	}
"""),
    # a closure in a loop whose sort depends on the pass
    "sortinloop": ("", """
	bestIdx := 0
	votes := make([]int, len(snapshots))
	for round := 0; round < 2; round++ {
		order := make([]int, len(snapshots))
		for i := range snapshots {
			order[i] = i
		}
		sort.Slice(order, func(a, b int) bool {
			x, y := snapshots[order[a]], snapshots[order[b]]
			if round == 0 {
				return x.QueueDepth < y.QueueDepth
			}
			return x.KVUtilization < y.KVUtilization
		})
		for rank, i := range order {
			votes[i] += rank
		}
	}
	for i, v := range votes {
		if v < votes[bestIdx] {
			bestIdx = i
		}
	}
"""),
    # a function that returns a struct
    "retstruct": ("""type pair struct{ a, b float64 }

func mk(x float64) pair { return pair{x, -x} }

""", """
	p := mk(2)
	bestIdx := int(p.a) % len(snapshots)
"""),
    # named results, and a return without any
    "retseveral": ("""func stats(snapshots []RoutingSnapshot) (minLoad, maxLoad int, avg float64) {
	minLoad = snapshots[0].QueueDepth
	for _, s := range snapshots {
		if s.QueueDepth < minLoad {
			minLoad = s.QueueDepth
		}
		if s.QueueDepth > maxLoad {
			maxLoad = s.QueueDepth
		}
		avg += float64(s.QueueDepth)
	}
	avg /= float64(len(snapshots))
	return
}

""", """
	lo, hi, avg := stats(snapshots)
	bestIdx := 0
	for i, s := range snapshots {
		if float64(s.QueueDepth) <= avg && hi > lo {
			bestIdx = i
		}
	}
"""),
    # a method beside it, a slice as an argument
    "funcparam": ("""func argmax(values []float64) int {
	best := 0
	for i, v := range values {
		if v > values[best] {
			best = i
		}
	}
	return best
}

func (ws *WeightedScoring) cost(snap RoutingSnapshot, req *Request) float64 {
	return float64(snap.QueueDepth) + 0.1*float64(len(req.InputTokens))
}

""", """
	values := make([]float64, len(snapshots))
	for i := range snapshots {
		values[i] = -ws.cost(snapshots[i], req)
	}
	bestIdx := argmax(values)
"""),
    # arrays of a fixed length
    "arr": ("", """
	var w [3]float64
	w[0], w[1], w[2] = 0.5, 0.3, 0.2
	if req.SLOClass == "critical" {
		w = [3]float64{0.8, 0.1, 0.1}
	}
	bestIdx, best := 0, math.Inf(-1)
	for i, s := range snapshots {
		f := []float64{1 - s.KVUtilization, 1 / (1 + float64(s.QueueDepth)), 1 / (1 + float64(s.BatchSize))}
		t := 0.0
		for k := range f {
			t += w[k] * f[k]
		}
		if t > best {
			best, bestIdx = t, i
		}
	}
"""),
    # more of package math
    "pow": ("", """
	bestIdx, bestScore := 0, -math.MaxFloat64
	for i, snap := range snapshots {
		u := math.Min(1.0, math.Max(0.0, snap.KVUtilization))
		score := -math.Pow(u, 2) - math.Sqrt(float64(snap.QueueDepth)) - math.Log1p(float64(snap.BatchSize))
		score += math.Floor(u*10)/10 + math.Mod(float64(i), 2)*0.001
		if math.Round(score*100)/100 > bestScore {
			bestScore = math.Round(score*100) / 100
			bestIdx = i
		}
	}
"""),
}  # fmt: skip
