// Package proc starts programs on one core and reads from the kernel what they use: CPU time in nanoseconds from
// schedstat, resident memory, calls of the kernel counted by strace.
//
//	p, err := proc.Start(proc.Command{Name: "nginx", Args: args, Core: 0, Log: path})
//	before, err := p.CPU()
//	…
//	p.Stop()
//
// Each program gets a session of its own, and everything in that session counts as the program: master and workers,
// parent and children. The program that uses this package must call Enter first thing in main, because a child is
// started through it: it pins itself and then becomes the program. CPU of threads and processes that have ended is lost,
// so a program must not fork for its work. Linux only.
package proc
