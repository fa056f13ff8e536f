"""Twenty routing functions in Go as program searches write them: what a language has that a router may use."""

from __future__ import annotations

SEARCHED: dict[str, tuple[str, str]] = {
    # labels, a count-down, a flag for each pass
    "labelled": ("", """
	bestIdx := -1
	limit := 1
search:
	for level := 0; level < 4; level++ {
		for i := len(snapshots) - 1; i >= 0; i-- {
			snap := snapshots[i]
			if snap.KVUtilization > 0.95 {
				continue
			}
			for _, other := range snapshots {
				if other.ID != snap.ID && other.QueueDepth+limit < snap.QueueDepth {
					continue search
				}
			}
			if snap.QueueDepth <= limit*level {
				bestIdx = i
				break search
			}
		}
		limit *= 2
	}
	if bestIdx < 0 {
		bestIdx = 0
	}
"""),
    # sets of instances as bits
    "bitmask": ("", """
	const (
		hot = 1 << iota
		full
		cached
	)
	flags := make([]int, len(snapshots))
	var seen uint64
	prefix := ws.scorers[0](req, snapshots)
	for i, snap := range snapshots {
		if snap.QueueDepth > 4 {
			flags[i] |= hot
		}
		if snap.KVUtilization >= 0.9 {
			flags[i] |= full
		}
		if prefix[snap.ID] > 0.2 {
			flags[i] |= cached
		}
		seen |= uint64(flags[i]) << 3
	}
	bestIdx, bestRank := 0, math.MaxInt
	for i := range flags {
		rank := (flags[i] &^ cached) << 2
		if flags[i]&cached == 0 {
			rank ^= 1
		}
		rank += int(seen>>4) & 3
		if rank < bestRank {
			bestRank, bestIdx = rank, i
		}
	}
"""),
    # slices of slices, appended to
    "buckets": ("", """
	buckets := make([][]int, 4)
	for i, snap := range snapshots {
		b := snap.EffectiveLoad() / 4
		if b > 3 {
			b = 3
		}
		buckets[b] = append(buckets[b], i)
	}
	bestIdx := 0
	for _, bucket := range buckets {
		if len(bucket) == 0 {
			continue
		}
		bestIdx = bucket[0]
		for _, i := range bucket[1:] {
			if snapshots[i].KVUtilization < snapshots[bestIdx].KVUtilization {
				bestIdx = i
			}
		}
		break
	}
"""),
    # a matrix of features, rows of it, variadic helpers
    "features": ("""func dot(a, b []float64) float64 {
	total := 0.0
	for i := range a {
		total += a[i] * b[i]
	}
	return total
}

func largest(first float64, others ...float64) float64 {
	best := first
	for _, v := range others {
		if v > best {
			best = v
		}
	}
	return best
}

""", """
	weights := []float64{0.6, 0.25, 0.15}
	prefix := ws.scorers[0](req, snapshots)
	rows := make([][]float64, 0, len(snapshots))
	for _, s := range snapshots {
		rows = append(rows, []float64{
			prefix[s.ID],
			1 / (1 + float64(s.InFlightRequests)),
			1 - s.KVUtilization,
		})
	}
	bestIdx, bestScore := 0, -1.0
	for i, row := range rows {
		score := dot(row, weights) - 0.1*largest(0, row[0]-row[1], row[2]-0.5)
		if score > bestScore {
			bestScore = score
			bestIdx = i
		}
	}
"""),
    # variables and tables of the package, constants counted by iota
    "package": ("""type tier int

const (
	tierIdle tier = iota
	tierBusy
	tierFull
)

var (
	tierPenalty  = []float64{0, 0.3, 0.9}
	classUrgency = map[string]float64{"critical": 2.0, "standard": 1.0, "batch": 0.25}
	epsilon      = 1e-9
)

var defaultUrgency float64 = 0.5

func tierOf(snap RoutingSnapshot) tier {
	switch {
	case snap.KVUtilization > 0.9:
		return tierFull
	case snap.BatchSize > 2:
		return tierBusy
	}
	return tierIdle
}

""", """
	urgency, ok := classUrgency[req.SLOClass]
	if !ok {
		urgency = defaultUrgency
	}
	bestIdx, best := 0, math.Inf(-1)
	for i, snap := range snapshots {
		score := 1/(1+float64(snap.EffectiveLoad()))*urgency - tierPenalty[tierOf(snap)]
		if score > best+epsilon {
			best, bestIdx = score, i
		}
	}
"""),
    # package strings, as far as classes and IDs go
    "strings": ("""func isUrgent(class string) bool {
	c := strings.ToLower(strings.TrimSpace(class))
	return strings.HasPrefix(c, "crit") || strings.EqualFold(class, "REALTIME")
}

""", """
	urgent := isUrgent(req.SLOClass)
	slack := strings.Contains(req.SLOClass, "bat") || len(req.SLOClass) == 0
	bestIdx := 0
	for i, snap := range snapshots {
		if strings.HasSuffix(snap.ID, "_1") && slack {
			bestIdx = i
			break
		}
		if urgent && snap.QueueDepth < snapshots[bestIdx].QueueDepth {
			bestIdx = i
		} else if !urgent && snap.KVUtilization < snapshots[bestIdx].KVUtilization {
			bestIdx = i
		}
	}
"""),
    # keys that leave a map; a set; how many are left
    "candidates": ("", """
	pool := make(map[string]bool, len(snapshots))
	load := map[string]int{}
	for _, snap := range snapshots {
		pool[snap.ID] = true
		load[snap.ID] = snap.EffectiveLoad()
	}
	for _, snap := range snapshots {
		if snap.KVUtilization > 0.9 && len(pool) > 1 {
			delete(pool, snap.ID)
		}
	}
	blocked := make(map[string]struct{})
	for _, snap := range snapshots {
		if load[snap.ID] > 6 {
			blocked[snap.ID] = struct{}{}
		}
	}
	bestIdx, bestLoad := -1, 1<<30
	for i, snap := range snapshots {
		if !pool[snap.ID] {
			continue
		}
		if _, bad := blocked[snap.ID]; bad && len(blocked) < len(pool) {
			continue
		}
		if load[snap.ID] < bestLoad {
			bestLoad = load[snap.ID]
			bestIdx = i
		}
	}
	if bestIdx == -1 {
		bestIdx = len(snapshots) - 1
	}
"""),
    # float32 and int32
    "narrow": ("", """
	var best float32 = -1e30
	bestIdx := 0
	for i, snap := range snapshots {
		load := float32(snap.EffectiveLoad())
		kv := float32(snap.KVUtilization)
		score := 1.0/(1.0+load)*0.7 + (1-kv)*0.3
		score *= float32(1) - 0.1*kv
		depth := int32(snap.QueueDepth) * 3
		if depth > 9 {
			score -= float32(depth) / 100
		}
		if score > best {
			best = score
			bestIdx = i
		}
	}
	if float64(best) < 0.1 {
		bestIdx = len(snapshots) / 2
	}
"""),
    # a hash of the prompt's length and of IDs decides among equals
    "hashed": ("""func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 29
	return h
}

func fnv(text string) uint32 {
	h := uint32(2166136261)
	for i := 0; i < len(text); i++ {
		h ^= uint32(text[i])
		h *= 16777619
	}
	return h
}

""", """
	key := mix(uint64(len(req.InputTokens)/16) + 0x9e3779b97f4a7c15)
	bestIdx := 0
	var bestHash uint64
	minLoad := snapshots[0].EffectiveLoad()
	for _, s := range snapshots {
		minLoad = min(minLoad, s.EffectiveLoad())
	}
	for i, s := range snapshots {
		if s.EffectiveLoad() > minLoad+1 {
			continue
		}
		h := mix(key ^ uint64(fnv(s.ID)))
		if h > bestHash || i == 0 {
			bestHash, bestIdx = h, i
		}
	}
	if req.SLOClass == "batch" {
		bestIdx = int(key % uint64(len(snapshots)))
	}
"""),
    # sorts of IDs and of places by what maps and slices hold of them
    "ranked": ("", """
	scores := make(map[string]float64, len(snapshots))
	ids := make([]string, 0, len(snapshots))
	byID := make(map[string]int, len(snapshots))
	for i, snap := range snapshots {
		scores[snap.ID] = ws.weights[0]*(1-snap.KVUtilization) + ws.weights[1]/float64(1+snap.QueueDepth)
		ids = append(ids, snap.ID)
		byID[snap.ID] = i
	}
	sort.Slice(ids, func(i, j int) bool {
		if scores[ids[i]] == scores[ids[j]] {
			return ids[i] < ids[j]
		}
		return scores[ids[i]] > scores[ids[j]]
	})
	top := ids
	if len(top) > 3 {
		top = top[:3]
	}
	order := make([]RoutingSnapshot, len(snapshots))
	copy(order, snapshots)
	byLoad := func(a, b int) bool { return order[a].EffectiveLoad() < order[b].EffectiveLoad() }
	sort.SliceStable(order, byLoad)
	bestIdx := byID[top[0]]
	for _, id := range top {
		if id == order[0].ID {
			bestIdx = byID[id]
		}
	}
"""),
    # closures that change what is outside
    "closures": ("", """
	count, total := 0, 0.0
	observe := func(v float64) {
		count++
		total += v
	}
	for _, snap := range snapshots {
		if snap.QueueDepth > 0 {
			observe(float64(snap.InFlightRequests))
		}
	}
	mean := 0.0
	if count > 0 {
		mean = total / float64(count)
	}
	clamp := func(x, lo, hi float64) float64 { return math.Max(lo, math.Min(hi, x)) }
	bestIdx, bestScore := 0, math.Inf(-1)
	consider := func(i int, score float64) {
		if score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
	for i, snap := range snapshots {
		gap := clamp((float64(snap.InFlightRequests)-mean)/(mean+1), -1, 1)
		consider(i, -gap-0.5*snap.KVUtilization)
	}
"""),
    # appends of several, of a slice, of copies; slices put together
    "appends": ("", """
	idle, busy := []int{}, []int{}
	for i, snap := range snapshots {
		if snap.BatchSize == 0 {
			idle = append(idle, i)
		} else {
			busy = append(busy, i)
		}
	}
	order := append([]int(nil), idle...)
	order = append(order, busy...)
	rest := append([]int{}, order[1:]...)
	rest = append(rest, order[0], 0)
	for i, j := 0, len(rest)-1; i < j; i, j = i+1, j-1 {
		rest[i], rest[j] = rest[j], rest[i]
	}
	bestIdx := rest[0]
	for _, i := range rest {
		if snapshots[i].FreeKVBlocks > snapshots[bestIdx].FreeKVBlocks {
			bestIdx = i
		}
	}
"""),
    # several results, named ones, slices and maps as results
    "results": ("""func spread(values []float64) (low, high, mean float64, err error) {
	if len(values) == 0 {
		return 0, 0, 0, nil
	}
	low, high = math.MaxFloat64, -math.MaxFloat64
	for _, v := range values {
		low = math.Min(low, v)
		high = math.Max(high, v)
		mean += v
	}
	mean /= float64(len(values))
	return
}

func normalized(scores map[string]float64, snapshots []RoutingSnapshot) map[string]float64 {
	out := make(map[string]float64, len(scores))
	values := make([]float64, 0, len(snapshots))
	for _, s := range snapshots {
		values = append(values, scores[s.ID])
	}
	low, high, _, _ := spread(values)
	for _, s := range snapshots {
		if high-low < 1e-12 {
			out[s.ID] = 1
			continue
		}
		out[s.ID] = (scores[s.ID] - low) / (high - low)
	}
	return out
}

func loads(snapshots []RoutingSnapshot) []float64 {
	out := make([]float64, len(snapshots))
	for i, s := range snapshots {
		out[i] = float64(s.EffectiveLoad())
	}
	return out
}

""", """
	prefix := normalized(ws.scorers[0](req, snapshots), snapshots)
	low, high, mean, err := spread(loads(snapshots))
	if err != nil {
		panic(err)
	}
	weight := 0.5
	if high > 2*mean && low < mean {
		weight = 0.2
	}
	bestIdx, bestScore := 0, -1.0
	for i, load := range loads(snapshots) {
		score := weight*prefix[snapshots[i].ID] + (1-weight)/(1+load)
		if score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
"""),
    # structs in structs, with slices, with methods, pointers to them
    "objects": ("""type loadInfo struct {
	queue, flight int
}

type candidate struct {
	idx   int
	load  loadInfo
	parts [2]float64
	score float64
	ok    bool
}

func (l loadInfo) total() float64 { return float64(l.queue) + 0.5*float64(l.flight) }

func (c *candidate) finish(weight float64) {
	c.score = c.parts[0]*weight + c.parts[1]
	c.ok = c.score > 0.2
}

func (c candidate) beats(other *candidate) bool {
	if c.ok != other.ok {
		return c.ok
	}
	return c.score > other.score
}

""", """
	cands := make([]*candidate, 0, len(snapshots))
	for i, s := range snapshots {
		c := &candidate{idx: i, load: loadInfo{s.QueueDepth, s.InFlightRequests}}
		c.parts[0] = 1 - s.KVUtilization
		c.parts[1] = 1 / (1 + c.load.total())
		cands = append(cands, c)
	}
	weight := 0.25
	if req.SessionID != "" {
		weight = 0.75
	}
	for _, c := range cands {
		c.finish(weight)
	}
	best := cands[0]
	for _, c := range cands[1:] {
		if c.beats(best) {
			best = c
		}
	}
	bestIdx := best.idx
"""),
    # maps by words of the program's own, and by number
    "words_as_keys": ("", """
	weights := map[string]float64{"prefix": 0.5, "load": 0.3, "kv": 0.2}
	switch req.SLOClass {
	case "critical", "standard":
		weights["load"] += 0.4
		weights["prefix"] -= 0.1
	case "background":
		weights["kv"] = 0.6
		fallthrough
	default:
		weights["load"] *= 0.5
	}
	total := weights["prefix"] + weights["load"] + weights["kv"]
	prefix := ws.scorers[0](req, snapshots)
	counts := make(map[int]int)
	for _, snap := range snapshots {
		counts[snap.QueueDepth]++
	}
	bestIdx, bestScore := 0, -1.0
	for i, snap := range snapshots {
		parts := map[string]float64{
			"prefix": prefix[snap.ID],
			"load":   1 / float64(1+snap.InFlightRequests),
			"kv":     1 - snap.KVUtilization,
		}
		score := 0.0
		for _, name := range []string{"prefix", "load", "kv"} {
			score += weights[name] / total * parts[name]
		}
		if counts[snap.QueueDepth] > 1 {
			score -= 0.05
		}
		if score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
"""),
    # functions of package math, and builtins of Go 1.21
    "mathematics": ("", """
	n := float64(len(snapshots))
	var sum, sumSq float64
	lo, hi := math.MaxInt, math.MinInt
	for _, s := range snapshots {
		v := float64(s.QueueDepth + s.BatchSize)
		sum += v
		sumSq += v * v
		lo, hi = min(lo, s.QueueDepth), max(hi, s.QueueDepth, 1)
	}
	mean := sum / n
	sd := math.Sqrt(math.Max(0, sumSq/n-mean*mean))
	bestIdx, bestScore := -1, math.NaN()
	for i, s := range snapshots {
		z := (float64(s.QueueDepth+s.BatchSize) - mean) / math.Max(sd, 1e-6)
		score := -math.Copysign(math.Abs(z), z) + math.Ceil(s.KVUtilization*4)/-8
		score += math.Floor(math.Sqrt(float64(hi-lo))) * math.Trunc(s.KVUtilization+0.5) * 0.01
		if math.Signbit(z) && !math.IsInf(score, 0) {
			score = math.Min(score+0.25, math.MaxFloat64)
		}
		if math.IsNaN(bestScore) || score > bestScore {
			bestScore, bestIdx = score, i
		}
	}
"""),
    # loops that go on while something holds
    "whiles": ("", """
	weights := []float64{0.8}
	for len(weights) < len(ws.scorers) {
		weights = append(weights, ws.weights[len(weights)]/2)
	}
	scores := make([]float64, len(snapshots))
	for k := range ws.scorers {
		dim := ws.scorers[k](req, snapshots)
		for i, s := range snapshots {
			scores[i] += weights[k] * dim[s.ID]
		}
	}
	budget := 8
	bestIdx := 0
	for budget > 0 && snapshots[bestIdx].QueueDepth > budget/2 {
		bestIdx = (bestIdx + 1) % len(snapshots)
		budget--
	}
	i := 0
	for i < len(snapshots) {
		if scores[i] > scores[bestIdx]+0.1 {
			bestIdx = i
		}
		i += 2
	}
	for next := 1; ; next++ {
		if next >= len(snapshots) || snapshots[next].KVUtilization >= snapshots[bestIdx].KVUtilization {
			break
		}
		bestIdx = next
	}
"""),
    # scorers of BLIS by their names, and an early return for a special case
    "scorer_names": ("", """
	load := scoreLoadBalance(req, snapshots)
	queue := scoreQueueDepth(req, snapshots)
	room := scoreKVUtilization(req, snapshots)
	scores := make(map[string]float64, len(snapshots))
	for _, snap := range snapshots {
		s := 0.5*load[snap.ID] + 0.3*queue[snap.ID] + 0.2*room[snap.ID]
		scores[snap.ID] = s
	}
	type pair struct {
		id    string
		value float64
	}
	pairs := make([]pair, 0, len(scores))
	for _, snap := range snapshots {
		pairs = append(pairs, pair{snap.ID, scores[snap.ID]})
	}
	sort.Slice(pairs, func(a, b int) bool {
		if pairs[a].value != pairs[b].value {
			return pairs[a].value > pairs[b].value
		}
		return pairs[a].id < pairs[b].id
	})
	winner := pairs[0].id
	bestIdx := 0
	for i := range snapshots {
		if snapshots[i].ID == winner {
			bestIdx = i
		}
	}
"""),
    # what lies in a struct of settings, functions in a slice, a function as an argument
    "settings": ("""type config struct {
	PrefixWeight, LoadWeight float64
	Knee                     int
	ByClass                  map[string]float64
}

func defaults() config {
	return config{
		PrefixWeight: 0.55, LoadWeight: 0.45, Knee: 4,
		ByClass: map[string]float64{"critical": 1.5, "batch": 0.5},
	}
}

func sumOver(snapshots []RoutingSnapshot, of func(RoutingSnapshot) float64) float64 {
	total := 0.0
	for _, s := range snapshots {
		total += of(s)
	}
	return total
}

""", """
	cfg := defaults()
	total := sumOver(snapshots, func(s RoutingSnapshot) float64 { return float64(s.InFlightRequests) })
	mean := total / float64(len(snapshots))
	if int(mean) > cfg.Knee {
		cfg.PrefixWeight, cfg.LoadWeight = cfg.LoadWeight, cfg.PrefixWeight
	}
	factor, found := cfg.ByClass[req.SLOClass]
	if !found {
		factor = 1
	}
	prefix := ws.scorers[0](req, snapshots)
	terms := []func(s RoutingSnapshot) float64{
		func(s RoutingSnapshot) float64 { return cfg.PrefixWeight * prefix[s.ID] },
		func(s RoutingSnapshot) float64 { return factor * cfg.LoadWeight / (1 + float64(s.InFlightRequests)) },
	}
	bestIdx, best := 0, -1.0
	for i, s := range snapshots {
		score := 0.0
		for _, term := range terms {
			score += term(s)
		}
		if score > best {
			best, bestIdx = score, i
		}
	}
"""),
    # two choices by chance, and a permutation
    "drawn": ("", """
	n := len(snapshots)
	first := ws.rng.Intn(n)
	second := int(ws.rng.Int31n(int32(n)))
	if n > 1 && second == first {
		second = (first + 1) % n
	}
	bestIdx := first
	if a, b := &snapshots[first], &snapshots[second]; b.EffectiveLoad() < a.EffectiveLoad() {
		bestIdx = second
	}
	if req.SLOClass == "sheddable" {
		order := ws.rng.Perm(n)
		bestIdx = order[0]
		for _, i := range order {
			if snapshots[i].QueueDepth == 0 {
				bestIdx = i
				break
			}
		}
	}
"""),
    # two names of one slice, of one map and of one struct; structs that are compared
    "shared": ("""type cell struct{ n, m int }

func bump(cells []cell, by map[string]int, snap RoutingSnapshot) {
	cells[0].n += snap.QueueDepth
	by[snap.ID]++
}

func doubled(c cell) int {
	c.n *= 2
	return c.n + c.m
}

""", """
	cells := make([]cell, len(snapshots))
	other := cells
	seen := map[string]int{}
	same := seen
	first := &cells[0]
	for i, snap := range snapshots {
		if snap.BatchSize > 1 {
			bump(other, same, snap)
		}
		cells[i].m = snap.BatchSize
	}
	first.m += 2
	last := cells[len(cells)-1]
	last.m = 50
	numbers := []int{3, 1, 2}
	view := numbers[1:]
	view[0] = other[0].n
	sort.Ints(numbers)
	var left, right [2]int
	left[1] = len(same)
	right = left
	right[0] = numbers[0]
	bestIdx := (cells[0].m + numbers[2] + seen[snapshots[0].ID] + right[0] - left[0]) % len(snapshots)
	if cells[0] == other[0] && last != cells[len(cells)-1] && bestIdx > 0 {
		bestIdx--
	}
	known := map[string]cell{snapshots[0].ID: cells[0]}
	if c, ok := known[snapshots[0].ID]; ok {
		c.n = 1000
		bestIdx = (bestIdx + doubled(cells[0]) + cells[0].n + known[snapshots[0].ID].n) % len(snapshots)
	}
	penalty := []float64{0.5, 0.2, 0.1}
	order := []int{0, 1, 2}
	sort.Slice(order, func(i, j int) bool { return penalty[order[i]] < penalty[order[j]] })
	best := func() cell { return cell{n: order[0], m: bestIdx} }
	bestIdx = (best().n + best().m) % len(snapshots)
"""),
}  # fmt: skip
