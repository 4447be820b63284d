package trainer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice/nodes/rank"
)

// Names within a checkpoint folder.
const (
	manifestName = "manifest.json" // in step-%08d, without the protocol
	latestName   = "latest"        // in the folder itself, written last
	stepPrefix   = "step-"
	keepComplete = 2 // complete checkpoints kept without the protocol
	saveSlices   = 20
	maxStepDirs  = 10_000 // looked at by Newest; more is refused with an error
)

// ErrShard says that a shard's content does not fit the model.
var ErrShard = errors.New("trainer: shard does not fit; was it written by another model?")

// shardHead is the first line of a shard; the values from..to of params, then
// those of velocity, follow as little-endian float64.
type shardHead struct {
	Step    int64 `json:"step"`
	Rank    int   `json:"rank"`
	World   int   `json:"world"`
	Samples int64 `json:"samples"`
	From    int   `json:"from"`
	To      int   `json:"to"`
	Total   int   `json:"total"`
}

// saved is a shard safely on disk.
type saved struct {
	rank.Shard
	Step    int64 `json:"step"`
	Samples int64 `json:"samples"`
}

func stepDir(dir string, step int64) string {
	return filepath.Join(dir, fmt.Sprintf(stepPrefix+"%08d", step))
}

// writeShard writes this rank's share of m under dir, stretched over saveMs.
// Until its last line nothing bears the shard's name.
func writeShard(ctx context.Context, dir string, env rank.Env, cfg Config, m *model, step, samples int64) (saved, error) {
	n := len(m.params)
	head := shardHead{Step: step, Rank: env.Rank, World: env.WorldSize, Samples: samples,
		From: n * env.Rank / env.WorldSize, To: n * (env.Rank + 1) / env.WorldSize, Total: n}
	body, err := json.Marshal(head)
	if err != nil {
		return saved{}, err
	}
	body = append(body, '\n')
	for _, values := range [][]float64{m.params, m.velocity} {
		for _, v := range values[head.From:head.To] {
			body = binary.LittleEndian.AppendUint64(body, math.Float64bits(v))
		}
	}
	folder := stepDir(dir, step)
	path := filepath.Join(folder, fmt.Sprintf("shard-%d-of-%d.bin", env.Rank, env.WorldSize))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return saved{}, fmt.Errorf("saving step %d: %w", step, err)
	}
	if err := writeSlowly(ctx, path, body, cfg.SaveMs); err != nil {
		return saved{}, fmt.Errorf("saving step %d: %w", step, err)
	}
	if err := errors.Join(rank.SyncDir(folder), rank.SyncDir(dir)); err != nil {
		return saved{}, fmt.Errorf("saving step %d: %w", step, err)
	}
	sum := sha256.Sum256(body)
	abs, err := filepath.Abs(path)
	if err != nil {
		return saved{}, err
	}
	return saved{Step: step, Samples: samples, Shard: rank.Shard{File: abs, Bytes: int64(len(body)),
		Digest: "sha256:" + hex.EncodeToString(sum[:]), Scope: cfg.Scope, Rank: env.Rank}}, nil
}

// writeSlowly replaces path with body. A leftover temporary file of a killed
// save is overwritten: it must not break the next one.
func writeSlowly(ctx context.Context, path string, body []byte, saveMs int64) error {
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range saveSlices {
		if _, err = f.Write(body[len(body)*i/saveSlices : len(body)*(i+1)/saveSlices]); err != nil {
			break
		}
		due := began.Add(time.Duration(saveMs) * time.Millisecond * time.Duration(i+1) / saveSlices)
		if err = pause(ctx, time.Until(due)); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	return os.Rename(temp, path)
}

// load verifies every shard of man and fills m from them, whatever the world
// size that wrote them.
func load(man rank.Manifest, m *model) error {
	if err := man.Validate(); err != nil {
		return err
	}
	covered := make([]bool, len(m.params))
	for _, s := range man.Shards {
		body, err := os.ReadFile(man.Path(s))
		if err != nil {
			return fmt.Errorf("%w: step %d: %s", rank.ErrTorn, man.Step, err.Error())
		}
		// Verified on the bytes that are used, not on a second reading.
		if int64(len(body)) != s.Bytes || rank.Digest(body) != s.Digest {
			return fmt.Errorf("%w: step %d: %s has other bytes than the manifest says", rank.ErrTorn, man.Step, s.File)
		}
		if err := loadShard(body, man, m, covered); err != nil {
			return fmt.Errorf("%s: %w", s.File, err)
		}
	}
	if i := slices.Index(covered, false); i >= 0 {
		return fmt.Errorf("%w: step %d: no shard holds value %d", rank.ErrTorn, man.Step, i)
	}
	return nil
}

func loadShard(body []byte, man rank.Manifest, m *model, covered []bool) error {
	line, rest, ok := bytes.Cut(body, []byte{'\n'})
	var h shardHead
	if !ok || json.Unmarshal(line, &h) != nil {
		return ErrShard
	}
	if h.Step != man.Step {
		return fmt.Errorf("%w: of step %d in a manifest of step %d", rank.ErrTorn, h.Step, man.Step)
	}
	if h.Total != len(m.params) || h.From < 0 || h.To < h.From || h.To > h.Total || len(rest) != 16*(h.To-h.From) {
		return ErrShard
	}
	for _, values := range [][]float64{m.params, m.velocity} {
		for i := h.From; i < h.To; i++ {
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(rest))
			rest = rest[8:]
			covered[i] = true
		}
	}
	return nil
}

// Newest finds the newest complete checkpoint that was written without the
// protocol: its manifest, and every shard's size and digest, must hold. path is
// empty when there is none. Passed says why newer ones were passed over; the
// latest pointer is for people and is not trusted.
func Newest(dir string) (man rank.Manifest, path string, passed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return man, "", nil, nil
	}
	if err != nil {
		return man, "", nil, fmt.Errorf("looking for checkpoints: %w", err)
	}
	if len(entries) > maxStepDirs {
		return man, "", nil, fmt.Errorf("looking for checkpoints: %d entries in %s, limit %d; remove old ones", len(entries), dir, maxStepDirs)
	}
	for _, e := range slices.Backward(entries) { // names sort by step
		if !strings.HasPrefix(e.Name(), stepPrefix) || !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name(), manifestName)
		man, merr := rank.ReadManifest(path)
		if merr == nil {
			merr = man.VerifyDigests()
		}
		if merr == nil && stepDir(dir, man.Step) != filepath.Join(dir, e.Name()) {
			merr = fmt.Errorf("%w: manifest of step %d in this folder", rank.ErrTorn, man.Step)
		}
		if merr == nil {
			return man, path, passed, nil
		}
		passed = append(passed, fmt.Sprintf("%s: %v", e.Name(), merr))
	}
	return rank.Manifest{}, "", passed, nil
}

// commit makes a checkpoint current without a controller: rank 0 does it when
// every shard is safe. Manifest first, then latest, then older ones are removed.
func commit(dir string, env rank.Env, shards []saved) error {
	first := shards[0]
	man := rank.Manifest{Job: env.Job, Generation: env.Generation, Step: first.Step, World: env.WorldSize, Samples: first.Samples}
	for _, s := range shards {
		if s.Step != man.Step {
			return fmt.Errorf("%w: shards of steps %d and %d", rank.ErrTorn, man.Step, s.Step)
		}
		s.File = filepath.Base(s.File) // the folder may be moved as a whole
		man.Shards = append(man.Shards, s.Shard)
	}
	folder := stepDir(dir, man.Step)
	if err := rank.WriteManifest(filepath.Join(folder, manifestName), man); err != nil {
		return err
	}
	if err := rank.WriteFileSync(filepath.Join(dir, latestName), []byte(filepath.Base(folder)+"\n")); err != nil {
		return err
	}
	return prune(dir, man.Step)
}

// prune keeps the newest complete checkpoints up to step, and whatever is newer
// or not complete: a torn one is evidence, and the next save overwrites it.
func prune(dir string, step int64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("removing old checkpoints: %w", err)
	}
	kept := 0
	for _, e := range slices.Backward(entries) {
		if !strings.HasPrefix(e.Name(), stepPrefix) || e.Name() > filepath.Base(stepDir(dir, step)) {
			continue
		}
		folder := filepath.Join(dir, e.Name())
		man, err := rank.ReadManifest(filepath.Join(folder, manifestName))
		if err != nil || man.VerifySizes() != nil {
			continue
		}
		if kept++; kept > keepComplete {
			if err := os.RemoveAll(folder); err != nil {
				return fmt.Errorf("removing old checkpoints: %w", err)
			}
		}
	}
	return nil
}
