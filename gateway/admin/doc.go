// Package admin is the control port: the JSON API of the operators and of the
// command line, the agents' streams, metrics and the dashboard.
//
// # What it decides
//
// Who may do what ([Auth]), whether a request is well formed (specs get their
// defaults and their checks from nodes/registry), and how the facts are shown.
// It decides nothing about GPUs: every change becomes one registry.Command that
// the [Controller] applies.
//
// # What its caller owes it
//
// A Controller (fill/exec is one), an Auth ([TokenAuth] reads the registry's
// tokens), a writer for the audit log, and a listener: [ListenUnix] for the
// default socket with mode 0600, or a TLS listener.
//
//	srv, err := admin.New(admin.Config{Controller: ctl, Audit: file, Log: log})
//	ln, err := admin.ListenUnix(filepath.Join(dataDir, "control.sock"))
//	go srv.Serve(ln)
//	…
//	srv.Shutdown(ctx)
//
// # Order of a request
//
// Panic guard and request id → authentication → role → limits on body and time
// → the asking line in the audit log (a change that cannot be recorded is
// refused) → the command → the line with its result → the answer.
//
// # What it does not do
//
// It keeps no state of its own, follows no redirect, and sends no secret but
// once: the answer that made it. Profiles (/debug/pprof) are on the Unix socket
// only.
package admin
