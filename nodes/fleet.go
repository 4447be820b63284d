package nodes

// Limits of what is remembered; the oldest goes first.
const (
	// keepShards is of one rank: two checkpoints.
	keepShards = 64
	// keepAnswers is of one stream: many more than its orders without effect yet.
	keepAnswers = 8192
)

// Fleet is the controller's picture of all agents, built from their frames. It
// is derived state: a new leader starts empty and is filled by hellos. Zero
// value: use NewFleet. Not safe for concurrent use.
type Fleet struct {
	Nodes map[string]*Seen
}

// Seen is what one agent says.
type Seen struct {
	Connected bool
	LastMs    int64 // fleet time of the last frame
	Node      Node
	Holders   map[string]*HolderStatus
	Ranks     map[string]map[int]*RankSeen // holder id → rank
	Readings  map[string]Reading
	// Answers are by order id, of the present stream, keepAnswers at most. Those
	// of a holder go when it is forgotten.
	Answers map[string]Answer
	order   []string // ids in Answers, and of some forgotten, oldest first
}

// RankSeen is the latest of one rank in its generation.
type RankSeen struct {
	Hello      bool
	Sync       string
	Generation int64
	From       int64 // step resumed from
	Begun      int64
	Done       int64
	Loss       float64
	Samples    int64
	Phase      string
	LastMs     int64
	// PreparedID, YieldedID, ResumedID and StoppedID are the stop ids last answered so.
	PreparedID    string
	PreparedBegun int64
	YieldedID     string
	YieldedStep   int64
	ResumedID     string
	StoppedID     string
	StoppedStep   int64
	Finished      bool
	FinishedStep  int64
	Lost          bool
	// PrunedStep is the step of the manifest for which its agent last removed
	// older checkpoints.
	PrunedStep int64
	Shards     []Shard
}

// NewFleet returns an empty fleet.
func NewFleet() *Fleet { return &Fleet{Nodes: map[string]*Seen{}} }

// Frame takes one line from the agent of node. The first must be a hello.
// It reports false for a frame from a node that never said hello.
func (f *Fleet) Frame(node string, fr *Frame, nowMs int64) bool {
	if fr.Hello != nil {
		f.hello(fr.Hello, nowMs)
		return true
	}
	s := f.Nodes[node]
	if s == nil {
		return false
	}
	s.LastMs = nowMs
	switch {
	case fr.Answer != nil:
		s.answer(fr.Answer)
	case fr.Holder != nil:
		s.holder(fr.Holder)
	case fr.Readings != nil:
		for _, r := range fr.Readings.GPUs {
			s.Readings[r.UUID] = r
		}
	case fr.Rank != nil:
		s.note(fr.Rank, nowMs)
	}
	return true
}

func (f *Fleet) hello(h *Hello, nowMs int64) {
	s := &Seen{Connected: true, LastMs: nowMs, Node: h.Node,
		Holders: map[string]*HolderStatus{}, Ranks: map[string]map[int]*RankSeen{},
		Readings: map[string]Reading{}, Answers: map[string]Answer{}}
	old := f.Nodes[h.Node.ID]
	f.Nodes[h.Node.ID] = s
	for i := range h.Holders {
		s.holder(&h.Holders[i])
		if old != nil {
			s.recall(h.Holders[i].ID, old.Ranks[h.Holders[i].ID])
		}
	}
	for i := range h.Ranks {
		s.note(&h.Ranks[i], nowMs)
	}
	for _, r := range h.Readings {
		s.Readings[r.UUID] = r
	}
}

// recall keeps how far the ranks of a holder were: a restarted agent knows it
// only of those that still live.
func (s *Seen) recall(holder string, old map[int]*RankSeen) {
	for rank, r := range old {
		if s.Ranks[holder] == nil {
			s.Ranks[holder] = map[int]*RankSeen{}
		}
		s.Ranks[holder][rank] = &RankSeen{Generation: r.Generation, From: r.From, Begun: r.Begun, Done: r.Done,
			Loss: r.Loss, Samples: r.Samples, LastMs: r.LastMs}
	}
}

func (s *Seen) holder(h *HolderStatus) {
	c := *h
	s.Holders[h.ID] = &c
}

// answer remembers a. An answer that is repeated keeps its age.
func (s *Seen) answer(a *Answer) {
	if _, known := s.Answers[a.ID]; !known {
		s.order = append(s.order, a.ID)
	}
	s.Answers[a.ID] = *a
	for len(s.order) > keepAnswers {
		delete(s.Answers, s.order[0])
		s.order = s.order[1:]
	}
}

// Forget drops a holder that is gone and was told to be forgotten.
func (s *Seen) Forget(holder string) {
	delete(s.Holders, holder)
	delete(s.Ranks, holder)
	kept := s.order[:0]
	for _, id := range s.order {
		if s.Answers[id].Holder == holder {
			delete(s.Answers, id)
		} else {
			kept = append(kept, id)
		}
	}
	s.order = kept
}

func (s *Seen) note(n *RankNote, nowMs int64) {
	m := s.Ranks[n.Holder]
	if m == nil {
		m = map[int]*RankSeen{}
		s.Ranks[n.Holder] = m
	}
	r := m[n.Rank]
	if r == nil {
		r = &RankSeen{Generation: n.Generation}
		m[n.Rank] = r
	}
	r.LastMs = nowMs
	switch n.Kind {
	case "hello":
		r.Hello, r.Sync, r.From, r.Lost = true, n.Sync, n.Step, false
		r.Begun, r.Done = max(r.Begun, n.Step), max(r.Done, n.Step)
	case "step":
		r.Begun, r.Done = max(r.Begun, n.Begun), max(r.Done, n.Done)
		r.Loss, r.Samples = n.Loss, n.Samples
	case "phase":
		r.Phase = n.Phase
	case "prepared":
		r.PreparedID, r.PreparedBegun = n.StopID, n.Begun
		r.Begun = max(r.Begun, n.Begun)
	case "yielded":
		r.YieldedID, r.YieldedStep = n.StopID, n.Step
		r.Done = max(r.Done, n.Step)
	case "resumed":
		r.ResumedID = n.StopID
	case "stopped":
		r.StoppedID, r.StoppedStep = n.StopID, n.Step
		r.Done = max(r.Done, n.Step)
	case "finished":
		r.Finished, r.FinishedStep = true, n.Step
		r.Done = max(r.Done, n.Step)
	case "shard":
		r.addShard(n.Shard)
	case "lost":
		r.Lost = true
	case "pruned":
		r.PrunedStep = max(r.PrunedStep, n.Step)
	}
}

func (r *RankSeen) addShard(sh *Shard) {
	if sh == nil {
		return
	}
	for i := range r.Shards {
		if r.Shards[i].Step == sh.Step && r.Shards[i].File == sh.File && r.Shards[i].Rank == sh.Rank {
			r.Shards[i] = *sh
			return
		}
	}
	r.Shards = append(r.Shards, *sh)
	if len(r.Shards) > keepShards {
		r.Shards = append(r.Shards[:0], r.Shards[len(r.Shards)-keepShards:]...)
	}
}

// Holder finds a holder's status on a node; nil when the agent did not name it.
func (f *Fleet) Holder(node, holder string) *HolderStatus {
	if s := f.Nodes[node]; s != nil {
		return s.Holders[holder]
	}
	return nil
}

// Rank finds the latest of one rank; nil when it said nothing.
func (f *Fleet) Rank(node, holder string, rank int) *RankSeen {
	if s := f.Nodes[node]; s != nil {
		return s.Ranks[holder][rank]
	}
	return nil
}
