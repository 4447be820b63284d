package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sluice/bench/peers/proc"
)

func isRoot() bool { return os.Geteuid() == 0 }

// Model is the name of the model that requests ask for, SlotModel of the one that has room for a single request.
const (
	Model     = "bench"
	SlotModel = "one-slot"
)

func sluiceCommand(s *Setup, port int) (proc.Command, error) {
	if _, err := os.Stat(s.Sluice); err != nil {
		return proc.Command{}, fmt.Errorf("peer: find sluice: %w; build it with `make build` or name it with -sluice", err)
	}
	return proc.Command{Name: s.Sluice, Args: []string{"serve", "--data", filepath.Join(s.Dir, "data"), "--node", "bench",
		"--listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "--log-level", "warn"}}, nil
}

// sluiceModel has limits that are checked with each request and that no run reaches.
const sluiceModel = `kind: Model
name: %s
url: http://%s
maxInFlight: %d
objectives:
- metric: ttft
  quantile: 0.95
  threshold: 60s
`

// sluiceSetUp makes the models and the key, with every limit on.
func sluiceSetUp(s *Setup, r *Running) error {
	for name, slots := range map[string]int{Model: 1 << 16, SlotModel: 1} {
		path, err := write(s, name+".yaml", fmt.Sprintf(sluiceModel, name, s.Engines[0], slots))
		if err != nil {
			return err
		}
		if _, err := sluiceVerb(s, "model", "apply", "-f", path); err != nil {
			return err
		}
	}
	return sluiceKey(s, r, Model, SlotModel)
}

func sluiceKey(s *Setup, r *Running, models ...string) error {
	args := []string{"key", "create", "--rpm", "1000000000", "--tpm", "1000000000",
		"--concurrent", "1000000", "-o", "json"}
	for _, m := range models {
		args = append(args, "--model", m)
	}
	out, err := sluiceVerb(s, args...)
	if err != nil {
		return err
	}
	var key struct{ Secret string }
	if err := json.Unmarshal(out, &key); err != nil {
		return fmt.Errorf("peer: read the key that sluice made: %w", err)
	}
	r.Key = key.Secret
	return nil
}

// sluiceUpCommand is a server with an agent, whose engines may be killed: models by url have one replica only.
func sluiceUpCommand(s *Setup, port int) (proc.Command, error) {
	c, err := sluiceCommand(s, port)
	if err == nil {
		c.Args = append([]string{"up", "--gpus", "sim:4"}, c.Args[1:]...)
	}
	return c, err
}

// sluiceEngineModel has two replicas, which the agent starts and starts again.
const sluiceEngineModel = `kind: Model
name: ` + Model + `
command: [%q, %s, "{{port}}", %q]
activeMemory: 1GiB
minReplicas: 2
maxReplicas: 2
maxInFlight: 1024
`

func sluiceEngines(engine, tag string) func(*Setup, *Running) error {
	return func(s *Setup, r *Running) error {
		path, err := write(s, "pair.yaml", fmt.Sprintf(sluiceEngineModel, engine, engineWord, tag))
		if err != nil {
			return err
		}
		if _, err := sluiceVerb(s, "model", "apply", "-f", path); err != nil {
			return err
		}
		return sluiceKey(s, r, Model)
	}
}

// verbTries bounds how often a verb is tried while the server comes up.
const verbTries = 50

func sluiceVerb(s *Setup, args ...string) ([]byte, error) {
	args = append(args, "--server", "unix:"+filepath.Join(s.Dir, "data", "control.sock"))
	for try := 1; ; try++ { // ends: verbTries
		var out, bad bytes.Buffer
		c := exec.Command(s.Sluice, args...)
		c.Stdout, c.Stderr = &out, &bad
		err := c.Run()
		if err == nil {
			return out.Bytes(), nil
		}
		if try == verbTries {
			return nil, fmt.Errorf("peer: sluice %s: %w: %s", args[0], err, bytes.TrimSpace(bad.Bytes()))
		}
		time.Sleep(startTry)
	}
}
