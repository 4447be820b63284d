package registry

import (
	"errors"
	"testing"
)

// A job that is being cancelled is cancelled: no later wish is taken that would not come true.
func TestCancelIsFinal(t *testing.T) {
	s := &State{Jobs: map[string]*Job{"a": {Phase: JobStopping}}}
	for _, c := range []struct {
		want string
		err  error
	}{{"paused", nil}, {"", nil}, {"cancelled", nil}, {"cancelled", nil}, {"paused", ErrConflict}, {"", ErrConflict}} {
		if _, err := s.jobWant(&JobWant{Job: "a", Want: c.want}); !errors.Is(err, c.err) {
			t.Errorf("%q: %v, want %v", c.want, err, c.err)
		}
	}
	if s.Jobs["a"].Want != "cancelled" {
		t.Error(s.Jobs["a"].Want)
	}
}
