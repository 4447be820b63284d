package prefix

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// check holds the three lists against each other.
func check(t *testing.T, x *Index) {
	t.Helper()
	chained := 0
	for hash, at := range x.heads {
		holders := 0
		for ; at != none; at = x.entries[at].nextHolder {
			if x.entries[at].hash != hash {
				t.Fatalf("entry %d of block %x is chained under %x", at, x.entries[at].hash, hash)
			}
			holders++
		}
		if holders == 0 || holders > MaxHolders {
			t.Fatalf("block %x has %d holders", hash, holders)
		}
		chained += holders
	}
	owned := 0
	for r, l := range x.replicas {
		n := 0
		for at := l.oldest; at != none; at = x.entries[at].newer {
			if x.entries[at].owner != r {
				t.Fatalf("entry %d of %d is in the list of %d", at, x.entries[at].owner, r)
			}
			n++
		}
		if n != l.n || n > x.perReplica {
			t.Fatalf("replica %d: %d entries in the list, %d counted, %d allowed", r, n, l.n, x.perReplica)
		}
		owned += n
	}
	free := 0
	for at := x.free; at != none; at = x.entries[at].older {
		free++
	}
	if chained != owned || chained != x.all.n || free+chained != len(x.entries) {
		t.Fatalf("chained %d, owned %d, all %d, free %d of %d", chained, owned, x.all.n, free, len(x.entries))
	}
}

func TestHashNamesWholeBeginnings(t *testing.T) {
	a := bytes.Repeat([]byte("sixteen bytes ok"), 64) // 1,024 bytes
	b := bytes.Clone(a)
	b[300] ^= 1
	seed := Seed("chat", "", "")
	ha, hb := Hash(nil, seed, a, 256), Hash(nil, seed, b, 256)
	if len(ha) != 4 {
		t.Fatalf("4 blocks wanted, got %d", len(ha))
	}
	if ha[0] != hb[0] || ha[1] == hb[1] || ha[3] == hb[3] {
		t.Errorf("a difference in block 2 must change blocks 2 to 4 and no other: %x %x", ha, hb)
	}
	if ha[0] == ha[1] {
		t.Error("equal blocks at different places must differ")
	}
	if Hash(nil, Seed("chat", "", "tenant"), a, 256)[0] == ha[0] || Hash(nil, Seed("chat", "lora", ""), a, 256)[0] == ha[0] {
		t.Error("salt and adapter must separate")
	}
	if got := Hash(nil, seed, make([]byte, 1<<20), 256); len(got) != MaxBlocks {
		t.Errorf("%d blocks of a long prompt, limit %d", len(got), MaxBlocks)
	}
	if got := Hash(nil, seed, a[:255], 256); len(got) != 0 {
		t.Errorf("a part of a block must not count, got %d", len(got))
	}
}

func TestMatchLongestFirst(t *testing.T) {
	x := New(1000, 0)
	blocks := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	x.Insert(1, blocks[:3])
	x.Insert(2, blocks[:6])
	x.Insert(3, blocks)
	x.Insert(4, []uint64{1, 2, 90, 91})
	got := x.Match(nil, blocks)
	want := []Match{{3, 8}, {2, 6}, {1, 3}}
	for i, w := range want {
		if i >= len(got) || got[i] != w {
			t.Fatalf("match %d: got %v, want %v", i, got, want)
		}
	}
	if got := x.Match(nil, []uint64{77}); len(got) != 0 {
		t.Errorf("unknown prompt matched %v", got)
	}
	x.RemoveReplica(3)
	if got := x.Match(nil, blocks); got[0] != (Match{2, 6}) {
		t.Errorf("after removal of 3: %v", got)
	}
	check(t, x)
}

func TestReplicaCapacityEvictsTails(t *testing.T) {
	x := New(1000, 8)
	x.Insert(1, []uint64{1, 2, 3, 4, 5, 6})
	x.Insert(1, []uint64{11, 12, 13, 14})
	if n := x.LenReplica(1); n != 8 {
		t.Fatalf("%d entries, capacity 8", n)
	}
	got := x.Match(nil, []uint64{1, 2, 3, 4, 5, 6})
	if len(got) != 1 || got[0].Blocks != 4 {
		t.Errorf("the two last blocks of the older prompt go first; got %v", got)
	}
	check(t, x)
}

// The index under varied prompts and replicas that leave and return: cap, per-replica cap and lists hold throughout.
func TestCase_RT_06_IndexIsBounded(t *testing.T) {
	const seed, limit = 6, 20_000
	rng := rand.New(rand.NewPCG(seed, seed))
	x := New(limit, 4_000)
	blocks := make([]uint64, 0, 64)
	peak := 0
	for i := range 100_000 {
		root := rng.Uint64N(100)
		blocks = append(blocks[:0], root+1)
		for range rng.IntN(63) {
			blocks = append(blocks, rng.Uint64()|1<<63)
		}
		x.Insert(Replica(rng.IntN(8)), blocks)
		peak = max(peak, x.Len())
		if i%1000 == 999 {
			x.RemoveReplica(Replica(i / 1000 % 8))
		}
		if i%20_000 == 0 {
			check(t, x)
		}
	}
	check(t, x)
	if peak > limit || len(x.heads) > limit {
		t.Errorf("peak %d entries, %d blocks, cap %d (seed %d)", peak, len(x.heads), limit, seed)
	}
	for r := range Replica(8) {
		x.RemoveReplica(r)
	}
	if x.Len() != 0 || len(x.heads) != 0 || len(x.replicas) != 0 {
		t.Errorf("%d entries, %d blocks, %d replicas left after all replicas left", x.Len(), len(x.heads), len(x.replicas))
	}
}

func BenchmarkMatch(b *testing.B) {
	x := New(1<<17, 0)
	rng := rand.New(rand.NewPCG(1, 1))
	prompts := make([][]uint64, 1000)
	for i := range prompts {
		p := []uint64{uint64(i % 10)}
		for range 63 {
			p = append(p, rng.Uint64())
		}
		prompts[i] = p
		x.Insert(Replica(i%100), p)
	}
	var dst [MaxMatches]Match
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		x.Match(dst[:0], prompts[i%len(prompts)])
	}
}

func BenchmarkHash4KB(b *testing.B) {
	prompt := make([]byte, 4096)
	var dst [64]uint64
	b.ReportAllocs()
	for b.Loop() {
		Hash(dst[:0], 7, prompt, DefaultBlockBytes)
	}
}
