package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// MaxTokens is how many records a TokenFile holds; one more is ErrTooMany.
const MaxTokens = 100

// ErrTooMany: the file is full.
var ErrTooMany = errors.New("too many join tokens: revoke some first")

// TokenFile keeps token records in one JSON file, mode 0600. Safe for
// concurrent use within one process.
type TokenFile struct {
	path string

	mu      sync.Mutex
	records map[string]TokenRecord // guarded by mu
}

// OpenTokens reads path; a missing file is an empty one.
func OpenTokens(path string) (*TokenFile, error) {
	f := &TokenFile{path: path, records: map[string]TokenRecord{}}
	b, err := readPrivate(path)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	var list []TokenRecord
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("trust: %s: %w: put back a copy, or move it aside and make new tokens", path, ErrDamaged)
	}
	for _, r := range list {
		f.records[r.ID] = r
	}
	return f, nil
}

// Token finds a record.
func (f *TokenFile) Token(id string) (TokenRecord, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.records[id]
	return r, ok
}

// List is all records, oldest first.
func (f *TokenFile) List() []TokenRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listLocked()
}

func (f *TokenFile) listLocked() []TokenRecord {
	list := make([]TokenRecord, 0, len(f.records))
	for _, r := range f.records {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b TokenRecord) int {
		if a.CreatedMs != b.CreatedMs {
			return int(max(-1, min(1, a.CreatedMs-b.CreatedMs)))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

// Add stores a record, on disk when it returns. Records that had expired when
// r was created leave the file.
func (f *TokenFile) Add(r TokenRecord) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, old := range f.records {
		if old.ExpiresMs != 0 && old.ExpiresMs <= r.CreatedMs {
			delete(f.records, id)
		}
	}
	if _, have := f.records[r.ID]; !have && len(f.records) >= MaxTokens {
		return fmt.Errorf("trust: %s holds %d: %w", f.path, MaxTokens, ErrTooMany)
	}
	return f.changeLocked(r.ID, &r)
}

// Revoke forgets a token: its bearers are refused from the next call on. An
// unknown id is no error.
func (f *TokenFile) Revoke(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changeLocked(id, nil)
}

// changeLocked writes the file first and undoes the change if that fails.
func (f *TokenFile) changeLocked(id string, r *TokenRecord) error {
	old, had := f.records[id]
	if r != nil {
		f.records[id] = *r
	} else {
		delete(f.records, id)
	}
	b, err := json.MarshalIndent(f.listLocked(), "", "  ")
	if err == nil {
		err = writeFile(f.path, append(b, '\n'), 0o600)
	}
	if err == nil {
		return nil
	}
	if had {
		f.records[id] = old
	} else {
		delete(f.records, id)
	}
	return err
}
