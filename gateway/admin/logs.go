package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sluice/nodes/registry"
)

const (
	maxTailBytes  = 16 << 20 // of one rank's log in one answer
	defaultTail   = 64 << 10
	maxLogLine    = 256 << 10 // longer lines are cut into several
	logLineBuffer = 256       // lines between the readers and the writer; readers wait when full
)

// logSource is one holder's log on its agent.
type logSource struct {
	holder string
	addr   string // of the agent
	label  string // "r3"
}

// getJobLog streams the logs of all ranks of a job's present generation, or of
// its last where it has none or ?previous=true asks for it, each line led by its
// rank when there are several: ?rank=N, ?tailBytes=N, ?follow=true.
func (s *Server) getJobLog(w http.ResponseWriter, r *http.Request, _ Actor) error {
	q := r.URL.Query()
	rank, err := queryInt(q.Get("rank"), -1, 0, registry.MaxWorldSize)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: "rank", Message: "is no rank", Remedy: "write a number from 0"}
	}
	tail, err := queryInt(q.Get("tailBytes"), defaultTail, 0, maxTailBytes)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: "tailBytes", Message: "is out of range", Remedy: fmt.Sprintf("write 0 to %d", maxTailBytes)}
	}
	name := r.PathValue("name")
	var sources []logSource
	s.read(func(v *snapshot) {
		if j := v.s.Jobs[name]; j != nil {
			sources, err = v.logSources(j, int(rank), q.Get("previous") == "true")
		} else {
			err = notFound("job", name)
		}
	})
	if err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.relayLogs(w, r, sources, tail, q.Get("follow") == "true")
}

// logSources finds the holders of a job's present generation, or of its last.
// With torchrun a source is that of all ranks of its node.
func (v *snapshot) logSources(j *registry.Job, rank int, previous bool) ([]logSource, error) {
	if previous || len(j.Ranks) == 0 {
		j = endedGeneration(j)
	}
	var out []logSource
	for first, n := 0, 0; first < len(j.Ranks); first += n {
		n = j.HolderRanks(first)
		if node := v.s.Nodes[j.Ranks[first].Node]; node != nil && (rank < 0 || (first <= rank && rank < first+n)) {
			out = append(out, logSource{j.Holder(first), node.AgentAddr, "r" + strconv.Itoa(first)})
		}
	}
	if len(out) == 0 {
		return nil, &Error{Status: http.StatusNotFound, Code: "no_log", Message: "no rank of this job has written a log that is known", Remedy: "look again when the job has run"}
	}
	return out[:min(len(out), maxLogRanks)], nil
}

// endedGeneration is j as it was placed in the generation that ended last.
func endedGeneration(j *registry.Job) *registry.Job {
	was := &registry.Job{Spec: registry.JobSpec{Name: j.Spec.Name, Launcher: j.Spec.Launcher}}
	if j.Last != nil {
		was.Generation = j.Last.Generation
		for i, node := range j.Last.Nodes {
			was.Ranks = append(was.Ranks, registry.RankPlace{Rank: i, Node: node})
		}
	}
	return was
}

// relayLogs reads all sources at once and writes their lines as they come. A
// source that cannot be reached is told in a line of its own.
func (s *Server) relayLogs(w http.ResponseWriter, r *http.Request, sources []logSource, tail int64, follow bool) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	lines := make(chan string, logLineBuffer)
	ended := make(chan struct{}, len(sources))
	for _, src := range sources {
		go func() {
			defer func() { ended <- struct{}{} }()
			prefix := ""
			if len(sources) > 1 {
				prefix = "[" + src.label + "] "
			}
			if err := s.readLog(ctx, src, tail, follow, prefix, lines); err != nil && ctx.Err() == nil {
				s.log.Info("control port: log of a holder not read", "holder", src.holder, "err", err)
				send(ctx, lines, prefix+"(sluice: the log cannot be read from its agent)\n")
			}
		}()
	}
	rc := lift(w)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	left := len(sources)
	defer func() { // readers end with ctx; wait for them, so that none outlives the request
		cancel()
		for ; left > 0; left-- {
			<-ended
		}
	}()
	for {
		select {
		case line := <-lines:
			rc.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := io.WriteString(w, line); err != nil {
				return nil
			}
			if len(lines) == 0 && rc.Flush() != nil {
				return nil
			}
		case <-ended:
			if left--; left == 0 {
				for len(lines) > 0 {
					io.WriteString(w, <-lines)
				}
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) readLog(ctx context.Context, src logSource, tail int64, follow bool, prefix string, lines chan<- string) error {
	u := url.URL{Scheme: s.agents.Scheme, Host: src.addr, Path: "/v1/holders/" + src.holder + "/log",
		RawQuery: url.Values{"tailBytes": {strconv.FormatInt(tail, 10)}, "follow": {strconv.FormatBool(follow)}}.Encode()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slow := time.AfterFunc(agentTimeout, cancel) // until the head of the answer
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("log of %s: %w", src.holder, err)
	}
	resp, err := s.agents.Client.Do(req)
	if err != nil {
		return fmt.Errorf("log of %s: %w", src.holder, err)
	}
	slow.Stop()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("log of %s: agent answered %s", src.holder, resp.Status)
	}
	return copyLines(ctx, resp.Body, prefix, lines)
}

func copyLines(ctx context.Context, r io.Reader, prefix string, lines chan<- string) error {
	br := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			text := prefix + string(line)
			if line[len(line)-1] != '\n' {
				text += "\n"
			}
			if !send(ctx, lines, text) {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

func send(ctx context.Context, lines chan<- string, line string) bool {
	select {
	case lines <- line:
		return true
	case <-ctx.Done():
		return false
	}
}
