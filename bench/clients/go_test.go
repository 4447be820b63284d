package clients

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

const goSuiteLimit = 20 * time.Minute // of which most is compiling, the first time

// TestSDKOfGo runs the suite of openaigo, when asked to.
func TestSDKOfGo(t *testing.T) {
	if os.Getenv("SLUICE_CLIENTS_GO") == "" {
		t.Skip("compiling openai-go takes minutes: set SLUICE_CLIENTS_GO=1 to try it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), goSuiteLimit)
	defer cancel()
	get := exec.CommandContext(ctx, "go", "-C", "openaigo", "mod", "download")
	if out, err := get.CombinedOutput(); err != nil {
		t.Skipf("openai-go cannot be had, is there a module proxy? %v\n%s", err, out)
	}
	s := newSite(t)
	suite := exec.CommandContext(ctx, "go", "-C", "openaigo", "test", "-count=1", "-v", "./...")
	suite.Env = s.env()
	out, err := suite.CombinedOutput()
	if err != nil {
		t.Fatalf("the suite: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
