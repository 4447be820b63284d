// Package prefix remembers which replica holds which beginnings of prompts, so that a request can go where its prefix
// is in the cache.
//
// The prompt's bytes are cut into blocks; each block is hashed with the hash of what stands before it, so one number
// names a whole beginning ([Hash]). An [Index] maps such numbers to replicas. It is an estimate of the engines' caches
// made from what was sent to them: bounded by a hard cap, by each replica's own capacity, least recently used first out.
//
// A pure core: no goroutine, lock or clock. One owner at a time calls an Index. Match does not allocate.
//
//	blocks := prefix.Hash(blocks[:0], prefix.Seed("chat", "", tenantSalt), prompt, prefix.DefaultBlockBytes)
//	matches := index.Match(matches[:0], blocks)
//	… choose …
//	index.Insert(chosen, blocks)
//
// It does not learn of evictions inside an engine; a wrong guess costs one prefill and nothing else.
package prefix

import "github.com/cespare/xxhash/v2"

// DefaultBlockBytes is the block length: about 64 tokens. Blocks smaller than MinBlockBytes are not worth an entry.
const (
	DefaultBlockBytes = 256
	MinBlockBytes     = 16
	// MaxBlocks of one prompt are hashed (128 KiB at the default length); what follows does not matter for the choice.
	MaxBlocks = 512
)

// Seed separates what must not share a cache entry: models, adapters, and tenants by their salt.
func Seed(model, adapter, tenantSalt string) uint64 {
	seed := xxhash.Sum64String(model)
	seed = seed*0x9e3779b97f4a7c15 + xxhash.Sum64String(adapter)
	return seed*0x9e3779b97f4a7c15 + xxhash.Sum64String(tenantSalt)
}

// Hash appends to dst one number for each whole block of prompt, at most MaxBlocks. A last block that is not whole is
// left out. A blockBytes below MinBlockBytes is read as DefaultBlockBytes.
func Hash(dst []uint64, seed uint64, prompt []byte, blockBytes int) []uint64 {
	if blockBytes < MinBlockBytes {
		blockBytes = DefaultBlockBytes
	}
	var digest xxhash.Digest
	previous := seed
	for n := 0; len(prompt) >= blockBytes && n < MaxBlocks; n++ {
		digest.ResetWithSeed(previous)
		digest.Write(prompt[:blockBytes])
		previous = digest.Sum64()
		dst = append(dst, previous)
		prompt = prompt[blockBytes:]
	}
	return dst
}
