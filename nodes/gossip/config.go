package gossip

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// Limits, each with its answer when reached.
const (
	// KeyBytes is the length of an encryption key (AES-256).
	KeyBytes = 32
	// MaxMetaBytes is what memberlist carries for each node: Start and SetMeta
	// return ErrMeta for more.
	MaxMetaBytes = memberlist.MetaMaxSize
	// MaxSeeds bounds the list of seeds: more is a configuration error.
	MaxSeeds = 256
	// MaxPending is how many nodes may have an undelivered event; beyond it the
	// backlog is replaced by one Resync event.
	MaxPending = 16384
	// joinsPerRound is how many absent seeds are tried in one round.
	joinsPerRound = 3
)

// Errors of starting.
var (
	// ErrNoKey: an address that others reach needs a key.
	ErrNoKey = errors.New("gossip without a key is allowed on loopback only: join with a token, or bind to 127.0.0.1")
	// ErrMeta: the node's description is too long.
	ErrMeta = fmt.Errorf("the node's description is over %d bytes: shorten its addresses or version", MaxMetaBytes)
)

// Meta is what a node tells of itself.
type Meta struct {
	Role        string `json:"role,omitempty"`        // serve, agent, up
	ControlAddr string `json:"controlAddr,omitempty"` // host:port of the control port, servers only
	AgentAddr   string `json:"agentAddr,omitempty"`   // host:port of the agent port, agents only
	Version     string `json:"version,omitempty"`     // of the program
}

func (m Meta) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err == nil && len(b) > MaxMetaBytes {
		return nil, fmt.Errorf("gossip: %w", ErrMeta)
	}
	return b, err
}

// decodeMeta reads another node's description; one that cannot be read is
// empty, since a newer program may write what this one does not know.
func decodeMeta(b []byte) Meta {
	var m Meta
	if len(b) > MaxMetaBytes || json.Unmarshal(b, &m) != nil {
		return Meta{}
	}
	return m
}

// Pace is how fast gossip looks and repairs.
type Pace struct {
	Probe        time.Duration // between two probes of a node
	ProbeTimeout time.Duration // for one probe's answer
	Gossip       time.Duration // between two rounds of news
	PushPull     time.Duration // between two whole exchanges
	Rejoin       time.Duration // between two rounds over the seeds, ± a quarter
	Reclaim      time.Duration // how long a dead node's name stays at its address
	Suspicion    int           // memberlist's multiplier before death is declared
	DialTimeout  time.Duration // for a stream to another node
}

// LAN is the default: a dead node is seen within about 6 s, a healed partition
// within 30 s, a moved node accepted within about 25 s.
func LAN() Pace {
	return Pace{
		Probe: time.Second, ProbeTimeout: 500 * time.Millisecond, Suspicion: 4,
		Gossip: 200 * time.Millisecond, PushPull: 30 * time.Second,
		Rejoin: 10 * time.Second, Reclaim: 5 * time.Second, DialTimeout: 5 * time.Second,
	}
}

// Fast is for tests on one machine and for `up`: everything within 2 s on an
// idle machine. Its false alarms on a loaded network are too many for use.
func Fast() Pace {
	return Pace{
		Probe: 100 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond, Suspicion: 3,
		Gossip: 20 * time.Millisecond, PushPull: 5 * time.Second,
		Rejoin: 200 * time.Millisecond, Reclaim: 300 * time.Millisecond, DialTimeout: time.Second,
	}
}

// Config describes this node. NodeID and Bind are required.
type Config struct {
	NodeID    string   // unique in the cluster, stable over restarts
	Bind      string   // IP address to listen on, TCP and UDP
	Port      int      // to listen on and to advertise; 0 picks a free one
	Advertise string   // IP address that others use; empty means Bind's
	Key       []byte   // KeyBytes long, from trust; nil on loopback only
	Cluster   string   // label; packets with another are dropped
	Seeds     []string // host:port; this node itself may be among them
	Meta      Meta
	Pace      Pace // zero means LAN()

	// wire, for tests: stands between memberlist and the network.
	wire func(memberlist.NodeAwareTransport) memberlist.NodeAwareTransport
}

// Validate checks each rule once and names the field.
func (c *Config) Validate() error {
	ip := net.ParseIP(c.Bind)
	switch {
	case c.NodeID == "" || len(c.NodeID) > 128:
		return errors.New("gossip: NodeID must have 1 to 128 bytes")
	case ip == nil:
		return fmt.Errorf("gossip: Bind %q is no IP address", c.Bind)
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("gossip: Port %d is none", c.Port)
	case c.Advertise != "" && net.ParseIP(c.Advertise) == nil:
		return fmt.Errorf("gossip: Advertise %q is no IP address", c.Advertise)
	case len(c.Key) != 0 && len(c.Key) != KeyBytes:
		return fmt.Errorf("gossip: the key has %d bytes, it must have %d", len(c.Key), KeyBytes)
	case len(c.Key) == 0 && !ip.IsLoopback():
		return fmt.Errorf("gossip: Bind %s: %w", c.Bind, ErrNoKey)
	case len(c.Cluster) > memberlist.LabelMaxSize:
		return fmt.Errorf("gossip: the Cluster label has %d bytes, the limit is %d", len(c.Cluster), memberlist.LabelMaxSize)
	case len(c.Seeds) > MaxSeeds:
		return fmt.Errorf("gossip: %d seeds, the limit is %d: a few are enough", len(c.Seeds), MaxSeeds)
	}
	for _, s := range c.Seeds {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("gossip: the seed %q needs the form host:port", s)
		}
	}
	return nil
}

// profile turns the configuration into memberlist's.
func (c *Config) profile(log *slog.Logger, g *Gossip) (*memberlist.Config, error) {
	p := c.Pace
	if p == (Pace{}) {
		p = LAN()
	}
	m := memberlist.DefaultLANConfig()
	m.Name = c.NodeID
	m.BindAddr, m.BindPort = c.Bind, c.Port
	m.AdvertiseAddr, m.AdvertisePort = c.Advertise, c.Port
	m.ProbeInterval, m.ProbeTimeout, m.SuspicionMult = p.Probe, p.ProbeTimeout, p.Suspicion
	m.GossipInterval, m.PushPullInterval = p.Gossip, p.PushPull
	m.TCPTimeout = p.DialTimeout
	m.DeadNodeReclaimTime = p.Reclaim
	m.GossipToTheDeadTime = 30 * p.Probe // a node that was only cut off hears of its death and objects
	m.Label = c.Cluster
	if len(c.Key) != 0 {
		ring, err := memberlist.NewKeyring(nil, c.Key)
		if err != nil {
			return nil, fmt.Errorf("gossip: %w", err)
		}
		m.Keyring, g.keys = ring, ring
		m.GossipVerifyIncoming, m.GossipVerifyOutgoing = true, true
	}
	m.Delegate, m.Events, m.Conflict = g, g, g
	m.LogOutput = &logWriter{log: log, stats: &g.stats}
	return m, nil
}
