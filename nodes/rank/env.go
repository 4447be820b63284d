package rank

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// ErrEnv says that the environment given to a rank is malformed.
var ErrEnv = errors.New("rank protocol: bad environment")

// Env is what an agent tells a rank through its environment. The zero Env is a
// single rank outside of sluice.
type Env struct {
	Socket        string // SLUICE_SOCKET; empty: no protocol
	Job           string // SLUICE_JOB
	Generation    int64  // SLUICE_GENERATION
	CheckpointDir string // SLUICE_CHECKPOINT_DIR, of this generation
	Resume        string // SLUICE_RESUME: manifest to resume from; empty: from the start
	Holder        string // SLUICE_HOLDER
	Rank          int    // RANK
	LocalRank     int    // LOCAL_RANK
	WorldSize     int    // WORLD_SIZE; 1 when unset
	MasterAddr    string // MASTER_ADDR
	MasterPort    int    // MASTER_PORT

	// Step and Samples resumed from, set by the trainer after it read Resume.
	Step    int64
	Samples int64
	// Sync is how this trainer's ranks run; SyncAll when empty.
	Sync Sync
}

// EnvFrom reads an Env, normally with os.Getenv. Errors wrap ErrEnv.
func EnvFrom(getenv func(string) string) (Env, error) {
	e := Env{
		Socket: getenv("SLUICE_SOCKET"), Job: getenv("SLUICE_JOB"),
		CheckpointDir: getenv("SLUICE_CHECKPOINT_DIR"), Resume: getenv("SLUICE_RESUME"),
		Holder: getenv("SLUICE_HOLDER"), MasterAddr: getenv("MASTER_ADDR"), Sync: SyncAll,
	}
	var err error
	number := func(name string, absent int64) int64 {
		s := getenv(name)
		if s == "" {
			return absent
		}
		n, perr := strconv.ParseInt(s, 10, 64)
		if perr != nil || n < 0 {
			err = fmt.Errorf("%w: %s=%q is not a count", ErrEnv, name, s)
		}
		return n
	}
	e.Generation = number("SLUICE_GENERATION", 0)
	e.Rank = int(number("RANK", 0))
	e.LocalRank = int(number("LOCAL_RANK", 0))
	e.WorldSize = int(number("WORLD_SIZE", 1))
	e.MasterPort = int(number("MASTER_PORT", 0))
	if err == nil && (e.WorldSize < 1 || e.Rank >= e.WorldSize) {
		err = fmt.Errorf("%w: RANK=%d is not below WORLD_SIZE=%d", ErrEnv, e.Rank, e.WorldSize)
	}
	return e, err
}

func (e Env) hello() Message {
	sync := e.Sync
	if sync == "" {
		sync = SyncAll
	}
	return Message{
		Type: TypeHello, Version: Version, Job: e.Job, Generation: e.Generation, Rank: e.Rank,
		WorldSize: max(e.WorldSize, 1), PID: os.Getpid(), Sync: sync, Step: e.Step, Samples: e.Samples,
	}
}
