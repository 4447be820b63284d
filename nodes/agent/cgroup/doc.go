// Package cgroup decides which processes of this machine belong to which holder
// of one agent, and ends them as a whole.
//
// The group, not the pid, is the holder: grandchildren, daemons and torchrun's
// workers belong to it. Where a cgroup v2 tree can be written, each holder has
// a cgroup of its own under sluice/MARK; where none can, membership is an
// environment mark (SLUICE_MARK and SLUICE_HOLDER) together with descent from
// the holder's shim, which is a sub-reaper.
//
// Owed by the caller: one Tree an agent, made by Find; a mark that no other
// agent of the machine uses; holder names of letters, digits, '.', '_', '-'.
//
//	tree := cgroup.Find("n1-3f2a90c1")
//	g := tree.Group("chat-7")
//	err := g.Create()
//	... start a process with g.Open() as its CgroupFD, or g.Env() in its environment
//	err = g.Kill()
//	pids, err := g.Pids() // empty: nothing of it is left
//
// It sets no limits on memory or CPU, and it holds nothing open. A Tree and a
// Group are values, safe for concurrent use.
package cgroup
