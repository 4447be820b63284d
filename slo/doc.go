// Package slo says how well a model is served, what demand is coming, and how many replicas that needs.
//
// # What it decides
//
// A [Tracker] follows one model. From arrivals and finished samples it keeps a sliding [Window] of log-bucket
// histograms, learns what a request costs on one replica ([Service]), forecasts demand at a horizon ([Forecast]), and
// answers with [Headroom]: capacity at the objectives, demand, the replicas that demand needs, attainment and burn.
//
// # What its caller owes it
//
// The package is a pure core: no goroutine, lock, file, logger or clock. Time comes in as fleet time, monotone
// milliseconds. One goroutine owns a Tracker; it calls Arrived when a request has been read, before it is queued (demand
// measured at the exit would be capped by capacity), Finished exactly once for each Arrived, SetQueue when the depth of
// the router's queue is known, and Headroom as often as it decides.
//
//	t, err := slo.NewTracker(slo.Model{Name: "chat", MaxInFlight: 64, Objectives: []slo.Objective{
//		{Metric: slo.TTFT, Quantile: 0.9, ThresholdMs: 2000}}}, slo.Default())
//	t.Arrived(nowMs)
//	t.Finished(sample, nowMs)
//	h := t.Headroom(nowMs, reclaimMs, ready)
//	if h.HeadroomReplicas < 0 { … ask for -h.HeadroomReplicas more … }
//
// # The formulas
//
// An engine is taken as a server that runs prompts one after the other and, between them, one decode step for the whole
// batch (prefill first, as vLLM does by default). Prompts wait for prompts: with k replicas, utilisation ρ of prefill
// and mean prefill time E[S],
//
//	P(wait > t) ≈ ρ^(√(2(k+1))−1) · exp(−2k(1−ρ)t / ((ca²+cs²)·E[S]))
//
// The first factor is Sakasegawa's (1977) approximation of the chance to wait in M/M/k, the second the exponential tail
// of Kingman (1962) with the Allen-Cunneen correction (1990) for the variability of arrivals (ca², index of dispersion
// of counts) and of service (cs²). Decode is a batch: its step is linear in the number b of running sequences and is
// stretched by 1/(1−ρ) as prompts go first, and b follows from Little's law, in closed form. Waiting for one of the
// k·MaxBatch slots has the same tail with these servers. Against a simulated engine of that kind (engine_test.go) the
// objectives hold at 85 % of the computed capacity and break at 135 %.
//
// # What it does not do
//
// It does not choose replicas (router), does not start or stop anything (fill), and does not clamp to a model's minimum
// or maximum number of replicas: zero traffic needs zero replicas, and the caller keeps its minimum.
package slo
