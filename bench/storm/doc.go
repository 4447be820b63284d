// Package storm attacks the program as a whole, from outside: it is stopped under load, killed under load, and kept
// under churn for as long as one likes. It has no code of its own beside the tests; those that need none of the program's
// processes are with the package they attack.
//
//	go test ./bench/storm
//	make soak-gateway SOAK=30m
package storm
