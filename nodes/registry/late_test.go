package registry

import "testing"

// Steps heard of after a generation was closed are lost, and counted once.
func TestLateStepsAreBooked(t *testing.T) {
	job := func() *Job {
		return &Job{Generation: 2, LostSteps: 10, LastDone: 30,
			Ledger: []LedgerEntry{{Generation: 2, FirstStep: 11, LastStep: 30, SavedStep: 20, LostSteps: 10}}}
	}
	for _, c := range []struct {
		name                    string
		edit                    func(*Job)
		heard, last, lost, jobs int64
	}{
		{"more were done", nil, 32, 32, 12, 12},
		{"nothing new", nil, 30, 30, 10, 10},
		{"not known", nil, 0, 30, 10, 10},
		{"no step was done, one was saved", func(j *Job) { j.Ledger[0].LastStep, j.Ledger[0].LostSteps, j.LostSteps = 10, 0, 0 }, 21, 21, 1, 1},
		{"an earlier generation's entry", func(j *Job) { j.Ledger[0].Generation = 1 }, 32, 30, 10, 10},
		{"a job that counts no steps", func(j *Job) { j.Ledger[0].LastStep = -1 }, 32, -1, 10, 10},
	} {
		j := job()
		if c.edit != nil {
			c.edit(j)
		}
		j.lateSteps(c.heard)
		if e := j.Ledger[0]; e.LastStep != c.last || e.LostSteps != c.lost || j.LostSteps != c.jobs {
			t.Errorf("%s: last %d, lost %d, in all %d; want %d, %d, %d", c.name, e.LastStep, e.LostSteps, j.LostSteps, c.last, c.lost, c.jobs)
		}
	}
	(&Job{}).lateSteps(5) // no generation was ever closed
}
