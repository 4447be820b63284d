package rank

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// MaxManifestBytes bounds a manifest file: some 100,000 shards.
const MaxManifestBytes = 32 << 20

// ErrTorn says that a checkpoint is not whole: a shard is missing, short, or has
// other bytes than its digest says. It must not be resumed from.
var ErrTorn = errors.New("checkpoint is torn")

// Manifest names one complete checkpoint: every shard of one generation and
// step. The controller alone makes one; its file is what SLUICE_RESUME names.
type Manifest struct {
	Job        string `json:"job"`
	Generation int64  `json:"generation"`
	Step       int64  `json:"step"`
	// World is the world size that wrote it; any other may read it.
	World int `json:"world"`
	// Samples the job had consumed at Step.
	Samples int64   `json:"samples"`
	Shards  []Shard `json:"shards"`
	// Dir is where relative files lie; when empty, the manifest's own folder.
	Dir string `json:"dir,omitempty"`
}

// Shard is one file of a checkpoint.
type Shard struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
	Scope  Scope  `json:"scope"`
	Rank   int    `json:"rank"`
}

// Validate checks that m could be complete: one shard at least from each rank.
// Errors wrap ErrTorn.
func (m Manifest) Validate() error {
	if m.World < 1 || m.Step < 0 || m.Samples < 0 {
		return fmt.Errorf("%w: world %d, step %d, samples %d", ErrTorn, m.World, m.Step, m.Samples)
	}
	seen := make(map[int]bool, m.World)
	for _, s := range m.Shards {
		if s.File == "" || s.Bytes < 0 || !validDigest(s.Digest) || s.Rank < 0 || s.Rank >= m.World {
			return fmt.Errorf("%w: step %d: shard %q of rank %d is malformed", ErrTorn, m.Step, s.File, s.Rank)
		}
		seen[s.Rank] = true
	}
	if len(seen) != m.World {
		return fmt.Errorf("%w: step %d: shards of %d ranks, world is %d", ErrTorn, m.Step, len(seen), m.World)
	}
	return nil
}

// Path is where shard s of m lies.
func (m Manifest) Path(s Shard) string {
	if filepath.IsAbs(s.File) {
		return s.File
	}
	return filepath.Join(m.Dir, s.File)
}

// VerifySizes checks that every shard is there with its size: cheap, done when a
// checkpoint is recorded. Errors wrap ErrTorn.
func (m Manifest) VerifySizes() error {
	if err := m.Validate(); err != nil {
		return err
	}
	for _, s := range m.Shards {
		fi, err := os.Stat(m.Path(s))
		if err != nil {
			return fmt.Errorf("%w: step %d: %s", ErrTorn, m.Step, err.Error())
		}
		if fi.Size() != s.Bytes {
			return fmt.Errorf("%w: step %d: %s has %d bytes, manifest says %d", ErrTorn, m.Step, s.File, fi.Size(), s.Bytes)
		}
	}
	return nil
}

// VerifyDigests reads every shard and compares its digest: done before a resume.
// Errors wrap ErrTorn.
func (m Manifest) VerifyDigests() error {
	if err := m.VerifySizes(); err != nil {
		return err
	}
	for _, s := range m.Shards {
		digest, err := DigestFile(m.Path(s))
		if err != nil {
			return fmt.Errorf("%w: step %d: %s", ErrTorn, m.Step, err.Error())
		}
		if digest != s.Digest {
			return fmt.Errorf("%w: step %d: %s has other bytes than its digest", ErrTorn, m.Step, s.File)
		}
	}
	return nil
}

// DigestFile is "sha256:" and the hex digest of a file's bytes.
func DigestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// Digest is DigestFile for bytes in memory.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ReadManifest reads and validates a manifest file; Dir is made absolute to the
// file's folder when it is empty or relative.
func ReadManifest(path string) (Manifest, error) {
	var m Manifest
	fi, err := os.Stat(path)
	if err != nil {
		return m, fmt.Errorf("reading manifest: %w", err)
	}
	if fi.Size() > MaxManifestBytes {
		return m, fmt.Errorf("%w: manifest %s has %d bytes, limit %d", ErrTorn, path, fi.Size(), MaxManifestBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return m, fmt.Errorf("reading manifest: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%w: manifest %s: %s", ErrTorn, path, err.Error())
	}
	if !filepath.IsAbs(m.Dir) {
		m.Dir = filepath.Join(filepath.Dir(path), m.Dir)
	}
	return m, m.Validate()
}

// WriteManifest writes m to path by temp file, fsync, rename and fsync of the
// folder: a crash leaves the old file or the new one.
func WriteManifest(path string, m Manifest) error {
	if err := m.Validate(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("writing manifest: %w", err)
	}
	return WriteFileSync(path, append(b, '\n'))
}

// WriteFileSync replaces path with data, mode 0600, so that after a crash the
// file is whole, old or new. One writer a path at a time.
func WriteFileSync(path string, data []byte) error {
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
