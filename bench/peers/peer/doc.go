// Package peer knows how each gateway of the comparison is set up and started: nginx, HAProxy and Caddy if they are on
// PATH, the bare relays of package ref, and sluice itself with a key with limits, a model with an objective, and metrics.
//
//	for _, p := range peer.All() {
//	    if p.Missing() == "" {
//	        r, err := p.Start(peer.Setup{Dir: dir, Core: 0, Engines: addrs, Sluice: "bin/sluice"})
//	    }
//	}
//
// Configurations are written to Setup.Dir, which the caller owns and removes. A peer is up when its port takes
// connections; whether it answers is for the caller to try. It measures nothing. Linux only.
package peer
