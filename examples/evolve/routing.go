	// EVOLVE-BLOCK-START
	prefix := ws.scorers[0](req, snapshots)
	least := snapshots[0].InFlightRequests
	for _, snap := range snapshots {
		if snap.InFlightRequests < least {
			least = snap.InFlightRequests
		}
	}
	scores := make(map[string]float64, len(snapshots))
	for _, snap := range snapshots {
		weight := 0.5
		if behind := snap.InFlightRequests - least; behind > 2 && req.SLOClass == "critical" {
			weight = 0.5 / float64(behind)
		}
		scores[snap.ID] = weight*prefix[snap.ID] + 1.0/(1.0+float64(snap.InFlightRequests))
	}
	bestIdx, bestScore := 0, -1.0
	for i, snap := range snapshots {
		if scores[snap.ID] > bestScore {
			bestScore = scores[snap.ID]
			bestIdx = i
		}
	}
	// EVOLVE-BLOCK-END
