package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"sluice/fill/exec"
	"sluice/gateway/admin"
	"sluice/nodes/registry"
	"sluice/nodes/replog"
)

// What passes by itself, or on another server, is told as such, and keeps what
// it was; a refusal stays one.
func TestErrorsThatPass(t *testing.T) {
	for _, err := range []error{exec.ErrNotLeader, replog.ErrNotLeader, replog.ErrBusy, replog.ErrDiskFull, replog.ErrDisk, replog.ErrUncertain, replog.ErrClosed} {
		wrapped := fmt.Errorf("apply: %w", err)
		if got := passing(wrapped); !errors.Is(got, admin.ErrUnavailable) || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
	for _, err := range []error{nil, registry.ErrConflict, replog.ErrTooLarge} {
		if got := passing(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// Whoever comes by the network is told nothing.
func TestInvariantsAreForTheSocket(t *testing.T) {
	w := httptest.NewRecorder()
	(&server{}).invariants(w, httptest.NewRequest(http.MethodGet, invariantsPath, nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}
