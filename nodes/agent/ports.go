package agent

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// portMemory is how many picks pass before a port may be picked again: the
// process may not have bound it yet, or its connections may linger.
const portMemory = 256

// portPicker picks free ports of the range. The owner's alone.
type portPicker struct {
	min, max int
	recent   []int
}

// pick returns a port that nobody listens on now and that taken does not name.
// The start is random, since agents of one machine pick from one range.
func (p *portPicker) pick(taken func(port int) bool) (int, error) {
	count := p.max - p.min + 1
	start := rand.IntN(count)
	for i := range count {
		port := p.min + (start+i)%count
		if taken(port) || p.isRecent(port) || !p.free(port) {
			continue
		}
		p.recent = append(p.recent, port)
		if len(p.recent) > min(portMemory, count/2) {
			p.recent = p.recent[1:]
		}
		return port, nil
	}
	return 0, ErrNoPort
}

func (p *portPicker) isRecent(port int) bool {
	for _, r := range p.recent {
		if r == port {
			return true
		}
	}
	return false
}

// free tries all addresses, so that no listener on any of them is met later.
func (p *portPicker) free(port int) bool {
	for _, host := range []string{"", "127.0.0.1"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return false
		}
		ln.Close()
	}
	return true
}
