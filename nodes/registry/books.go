package registry

import "strconv"

// BookState is what a GPU-millisecond is booked as.
type BookState int

// The states of the books; every GPU-millisecond is in exactly one.
const (
	BookIdle      BookState = iota // usable, nobody's
	BookServing                    // a replica that answers, or may
	BookTraining                   // a gang steps; kept unless moved to lost
	BookLost                       // trained, then lost: moved here from training
	BookSwitching                  // starting, waking, stopping, saving, proving
	BookReserved                   // free, held for whoever comes next
	BookFenced                     // unhealthy or held by a stranger
	BookUnknown                    // its node did not report
	bookStates
)

var bookNames = [bookStates]string{"idle", "serving", "trainingKept", "trainingLost", "switching", "reserved", "fenced", "unknown"}

// String is the state's name in metrics and JSON.
func (b BookState) String() string {
	if b < 0 || b >= bookStates {
		return "invalid"
	}
	return bookNames[b]
}

// BookStates lists all states in order.
func BookStates() []BookState {
	all := make([]BookState, bookStates)
	for i := range all {
		all[i] = BookState(i)
	}
	return all
}

// Books are totals in GPU-milliseconds since each GPU was first seen.
type Books struct {
	TotalMs [bookStates]int64 `json:"totalMs"`
	// TenantMs splits serving, training and switching by tenant.
	TenantMs map[string]*[bookStates]int64 `json:"tenantMs"`
	// ResidentMs is the second book: time that sleeping replicas and yielded
	// ranks kept memory, counted for each resident.
	ResidentMs int64 `json:"residentMs"`
	// GoneMs is the capacity of GPUs that were removed from the fleet.
	GoneMs int64 `json:"goneMs"`
}

// Totals is a reading of the books at one moment.
type Totals struct {
	AtMs       int64
	ByState    [bookStates]int64
	CapacityMs int64 // Σ over GPUs of the time since first seen
	BalanceMs  int64 // ΣByState − CapacityMs: 0 when the books are exact
	ResidentMs int64
}

// BooksAt reads the books at nowMs without changing them.
func (s *State) BooksAt(nowMs int64) Totals {
	t := Totals{AtMs: nowMs, ByState: s.Books.TotalMs, CapacityMs: s.Books.GoneMs, ResidentMs: s.Books.ResidentMs}
	for _, g := range s.GPUs {
		if d := nowMs - g.SinceMs; d > 0 {
			t.ByState[g.Book] += d
			t.ResidentMs += d * int64(len(g.Residents))
		}
		t.CapacityMs += max(nowMs, g.SinceMs) - g.FirstMs
	}
	var sum int64
	for _, v := range t.ByState {
		sum += v
	}
	t.BalanceMs = sum - t.CapacityMs
	return t
}

// settle books the time of g since it was last settled under its state.
func (s *State) settle(g *GPU, atMs int64) {
	d := atMs - g.SinceMs
	if d <= 0 {
		return
	}
	s.book(g, g.Book, d)
	s.Books.ResidentMs += d * int64(len(g.Residents))
	g.SinceMs = atMs
}

func (s *State) book(g *GPU, b BookState, ms int64) {
	s.Books.TotalMs[b] += ms
	tenant, job := s.payer(g)
	if tenant != "" {
		s.tenantBook(tenant)[b] += ms
	}
	if b == BookTraining && job != nil {
		job.TrainGPUMs += ms
		job.UnsavedMs += ms
	}
}

func (s *State) tenantBook(tenant string) *[bookStates]int64 {
	t := s.Books.TenantMs[tenant]
	if t == nil {
		t = new([bookStates]int64)
		s.Books.TenantMs[tenant] = t
	}
	return t
}

// payer finds the tenant, and the job if it is one, that g's active holder
// belongs to.
func (s *State) payer(g *GPU) (string, *Job) {
	if g.Active == "" {
		return "", nil
	}
	if r := s.Replicas[g.Active]; r != nil {
		if m := s.Models[r.Model]; m != nil {
			return m.Spec.Tenant, nil
		}
		return "", nil
	}
	if j := s.Jobs[jobOf(g.Active)]; j != nil {
		return j.Spec.Tenant, j
	}
	return "", nil
}

// rebook settles g and finds its present book state.
func (s *State) rebook(g *GPU, atMs int64) {
	s.settle(g, atMs)
	g.Book = s.bookState(g)
}

func (s *State) bookState(g *GPU) BookState {
	if n := s.Nodes[g.Node]; n == nil || n.Lost {
		return BookUnknown
	}
	if g.Fenced != "" {
		return BookFenced
	}
	if r := s.Replicas[g.Active]; r != nil {
		if r.Phase == ReplicaReady || r.Phase == ReplicaDraining {
			return BookServing
		}
		return BookSwitching
	}
	if g.Active != "" {
		if j := s.Jobs[jobOf(g.Active)]; j != nil && j.Phase == JobRunning && s.CurrentHolder(g.Active) {
			return BookTraining
		}
		return BookSwitching
	}
	if g.Reserved != "" {
		return BookReserved
	}
	return BookIdle
}

// lose moves a job's unsaved time from kept to lost.
func (s *State) lose(j *Job) int64 {
	ms := j.UnsavedMs
	j.UnsavedMs = 0
	s.Books.TotalMs[BookTraining] -= ms
	s.Books.TotalMs[BookLost] += ms
	t := s.tenantBook(j.Spec.Tenant)
	t[BookTraining] -= ms
	t[BookLost] += ms
	j.LostGPUMs += ms
	return ms
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
