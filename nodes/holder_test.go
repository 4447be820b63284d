package nodes

import "testing"

func TestStepName(t *testing.T) {
	for path, want := range map[string]string{
		"step-00000120/shard-0-of-2.bin": "step-00000120", "step-7-rank-0.pt": "step-7", "step-7": "step-7", "step-7x": "step-7",
		"step-": "", "step-x7": "", "": "", "x/step-7": "", "Step-7": "",
	} {
		if got := StepName(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
