package prefix

// Replica names a replica in an Index: a small number that the caller gives and does not reuse before RemoveReplica.
type Replica uint32

// Match says that a replica holds the first Blocks blocks.
type Match struct {
	Replica Replica
	Blocks  int
}

// Limits of an Index.
const (
	// MaxMatches are returned at most, longest first: the choice compares a handful of replicas.
	MaxMatches = 8
	// MaxHolders of one block are remembered; the one that used it least recently gives way.
	MaxHolders = 8
	// DefaultEntries is about 8 MB.
	DefaultEntries = 1 << 17
)

const none = int32(-1)

// entry is one block held by one replica. It stands in three lists: the holders of its block, the replica's blocks by
// use, and all entries by use. Indexes instead of pointers keep it small and out of the garbage collector's sight.
type entry struct {
	hash               uint64
	owner              Replica
	nextHolder         int32
	older, newer       int32 // of the same replica; free entries are chained by older
	olderAll, newerAll int32
}

// list is the two ends of a list by use.
type list struct {
	oldest, newest int32
	n              int
}

// Index is the bounded map. Make it with New. Not safe for concurrent use.
type Index struct {
	entries    []entry
	free       int32
	heads      map[uint64]int32 // block → first holder
	replicas   map[Replica]*list
	all        list
	most       int // entries there may be
	perReplica int
}

// New returns an empty index for at most entries entries (a block held by a replica is one; below 1 is read as
// DefaultEntries), of which one replica has at most perReplica (below 1: no limit of its own; set it to the engine's
// cache in blocks). Memory is taken as it fills: 40 bytes an entry, and about 20 for the map.
func New(entries, perReplica int) *Index {
	if entries < 1 {
		entries = DefaultEntries
	}
	if perReplica < 1 || perReplica > entries {
		perReplica = entries
	}
	return &Index{
		free: none, heads: make(map[uint64]int32), replicas: make(map[Replica]*list), all: list{none, none, 0},
		most: entries, perReplica: perReplica,
	}
}

// Len is the number of entries in use, never above the cap.
func (x *Index) Len() int { return x.all.n }

// LenReplica is the number of blocks that a replica is believed to hold.
func (x *Index) LenReplica(r Replica) int {
	if l := x.replicas[r]; l != nil {
		return l.n
	}
	return 0
}

// Match appends the replicas that hold a beginning of blocks, longest first, at most MaxMatches. Since the use of a
// block renews all blocks before it, beginnings are evicted last, so the longest one known is found by halving.
func (x *Index) Match(dst []Match, blocks []uint64) []Match {
	from := len(dst)
	lo, hi := 0, len(blocks) // blocks[:lo] is known, blocks[:hi+1] is not
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if _, ok := x.heads[blocks[mid-1]]; ok {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if lo == 0 {
		return dst
	}
	dst = x.holders(dst, from, blocks[lo-1], lo)
	// Who holds a shorter beginning holds the first block; how far it goes is found by halving too.
	known := len(dst)
	dst = x.holders(dst, from, blocks[0], 1)
	for i := known; i < len(dst); i++ {
		m := dst[i]
		m.Blocks = x.longest(m.Replica, blocks[:lo])
		at := i
		for at > known && dst[at-1].Blocks < m.Blocks {
			dst[at] = dst[at-1]
			at--
		}
		dst[at] = m
	}
	return dst
}

// longest is how many of blocks, of which the first is held, r holds.
func (x *Index) longest(r Replica, blocks []uint64) int {
	lo, hi := 1, len(blocks)
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if x.holds(r, blocks[mid-1]) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

func (x *Index) holds(r Replica, hash uint64) bool {
	at, ok := x.heads[hash]
	for ok && at != none {
		if x.entries[at].owner == r {
			return true
		}
		at = x.entries[at].nextHolder
	}
	return false
}

// holders appends who holds the block and is not in dst[from:] yet.
func (x *Index) holders(dst []Match, from int, hash uint64, length int) []Match {
	at, ok := x.heads[hash]
	if !ok {
		return dst
	}
next:
	for ; at != none && len(dst)-from < MaxMatches; at = x.entries[at].nextHolder {
		owner := x.entries[at].owner
		for _, m := range dst[from:] {
			if m.Replica == owner {
				continue next
			}
		}
		dst = append(dst, Match{owner, length})
	}
	return dst
}

// Insert notes that replica r was sent a prompt of these blocks. At most MaxBlocks count, and no more than the replica
// may hold.
func (x *Index) Insert(r Replica, blocks []uint64) {
	blocks = blocks[:min(len(blocks), MaxBlocks, x.perReplica)]
	own := x.replicas[r]
	if own == nil {
		own = &list{none, none, 0}
		x.replicas[r] = own
	}
	for i := len(blocks) - 1; i >= 0; i-- { // last first, so that the beginning is the newest
		x.use(r, own, blocks[i])
	}
}

func (x *Index) use(r Replica, own *list, hash uint64) {
	head, known := x.heads[hash]
	if !known {
		head = none
	}
	holders, oldest := 0, none
	for at := head; at != none; at = x.entries[at].nextHolder {
		if x.entries[at].owner == r {
			x.touch(own, at)
			return
		}
		holders++
		oldest = at // holders are chained newest first
	}
	if holders >= MaxHolders {
		x.drop(oldest)
	} else if own.n >= x.perReplica {
		x.drop(own.oldest)
	} else if x.free == none && len(x.entries) >= x.most {
		x.drop(x.all.oldest)
	}
	if head, known = x.heads[hash]; !known {
		head = none
	}
	if x.free == none {
		x.entries = append(x.entries, entry{older: none})
		x.free = int32(len(x.entries) - 1)
	}
	at := x.free
	x.free = x.entries[at].older
	x.entries[at] = entry{hash: hash, owner: r, nextHolder: head}
	x.heads[hash] = at
	x.linkOwn(own, at)
	x.linkAll(at)
}

func (x *Index) touch(own *list, at int32) {
	x.unlinkOwn(own, at)
	x.unlinkAll(at)
	x.linkOwn(own, at)
	x.linkAll(at)
}

// drop takes an entry out of all three lists and frees it.
func (x *Index) drop(at int32) {
	e := &x.entries[at]
	own := x.replicas[e.owner]
	x.unlinkOwn(own, at)
	x.unlinkAll(at)
	if head := x.heads[e.hash]; head == at {
		if e.nextHolder == none {
			delete(x.heads, e.hash)
		} else {
			x.heads[e.hash] = e.nextHolder
		}
	} else {
		for x.entries[head].nextHolder != at {
			head = x.entries[head].nextHolder
		}
		x.entries[head].nextHolder = e.nextHolder
	}
	e.older = x.free
	x.free = at
}

// RemoveReplica forgets everything of a replica that left or lost its cache.
func (x *Index) RemoveReplica(r Replica) {
	own := x.replicas[r]
	if own == nil {
		return
	}
	for own.oldest != none {
		x.drop(own.oldest)
	}
	delete(x.replicas, r)
}

func (x *Index) linkOwn(l *list, at int32) {
	e := &x.entries[at]
	e.older, e.newer = l.newest, none
	if l.newest != none {
		x.entries[l.newest].newer = at
	} else {
		l.oldest = at
	}
	l.newest = at
	l.n++
}

func (x *Index) unlinkOwn(l *list, at int32) {
	e := &x.entries[at]
	if e.older != none {
		x.entries[e.older].newer = e.newer
	} else {
		l.oldest = e.newer
	}
	if e.newer != none {
		x.entries[e.newer].older = e.older
	} else {
		l.newest = e.older
	}
	l.n--
}

func (x *Index) linkAll(at int32) {
	e := &x.entries[at]
	e.olderAll, e.newerAll = x.all.newest, none
	if x.all.newest != none {
		x.entries[x.all.newest].newerAll = at
	} else {
		x.all.oldest = at
	}
	x.all.newest = at
	x.all.n++
}

func (x *Index) unlinkAll(at int32) {
	e := &x.entries[at]
	if e.olderAll != none {
		x.entries[e.olderAll].newerAll = e.newerAll
	} else {
		x.all.oldest = e.newerAll
	}
	if e.newerAll != none {
		x.entries[e.newerAll].olderAll = e.olderAll
	} else {
		x.all.newest = e.olderAll
	}
	x.all.n--
}
