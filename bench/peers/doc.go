// Command peers measures sluice beside what people would put in its place: nginx, HAProxy, Caddy and bare relays, all in
// turn in one run. A gateway has one core for itself; the simulated engine and the clients share another.
//
//	make bench-peers
//	make bench-peers ARGS='-only plain,tokens -rounds 3'
//	make bench-peers ARGS='-peers sluice,nginx -o bin/peers.json'
//
// It prints a line a measurement while it runs, then tables with each peer's medians and spread, the ratio to tuned
// nginx, and the project's goals with what was reached. CPU comes from the kernel's accounting of the gateway's threads.
// On a machine that does something else beside, only the ratios mean anything.
//
// It is run by hand and never a test. It needs Linux 5.11, two cores, and a quarter of an hour for everything. Peers that
// are not on PATH are left out and named. What it does not do: TLS, several machines, several cores a gateway.
package main
