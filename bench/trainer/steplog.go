package trainer

import (
	"encoding/json"
	"fmt"
	"os"
)

// stepLine is one line of a step log: this rank's own counters, to be compared
// with the ledger. A line is one write, so a kill cuts none in two.
type stepLine struct {
	Generation int64    `json:"generation"`
	Rank       int      `json:"rank"`
	Begun      int64    `json:"begun"`
	Done       int64    `json:"done"`
	Loss       *float64 `json:"loss,omitempty"` // of step done, when it is the news
}

type stepLog struct {
	f          *os.File // nil: no log
	generation int64
	rank       int
}

func openStepLog(prefix string, generation int64, rank int) (*stepLog, error) {
	l := &stepLog{generation: generation, rank: rank}
	if prefix == "" {
		return l, nil
	}
	f, err := os.OpenFile(fmt.Sprintf("%s.rank-%d", prefix, rank), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening step log: %w", err)
	}
	l.f = f
	return l, nil
}

func (l *stepLog) write(begun, done int64, loss *float64) error {
	if l.f == nil {
		return nil
	}
	b, err := json.Marshal(stepLine{l.generation, l.rank, begun, done, loss})
	if err == nil {
		_, err = l.f.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing step log: %w", err)
	}
	return nil
}

func (l *stepLog) close() {
	if l.f != nil {
		l.f.Close()
	}
}
