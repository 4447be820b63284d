package main

import (
	"log/slog"
	"syscall"

	"sluice/gateway"
)

// Descriptors: each client may need two, its own connection and one to an engine.
const (
	otherFiles  = 256 // for facts, logs, the control port and agents
	fewestConns = 16  // with fewer a data port is no use
)

// boundConns lowers the number of client connections to what the limit on open files lets the process have, so that the
// rest of the server never runs out of them.
func boundConns(cfg *gateway.Config, log *slog.Logger) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	if room := connsWithin(limit.Cur); room < cfg.MaxConns {
		log.Warn("the limit on open files bounds client connections; raise it (ulimit -n, LimitNOFILE)", "openFiles", limit.Cur,
			"connections", room, "wanted", cfg.MaxConns)
		cfg.MaxConns = room
	}
}

// connsWithin is how many clients a number of descriptors is enough for.
func connsWithin(files uint64) int {
	const most = 1 << 22
	if files > most {
		files = most
	}
	return max(fewestConns, (int(files)-otherFiles)/2)
}
