// Package trust says who may speak: join tokens for agents, TLS between the
// parts of a cluster, API keys for tenants, and the key that gossip is
// encrypted with.
//
// # What there is
//
// The [Authority] lives in a directory (DATA/tls) and is made on first start:
// a private CA (ECDSA P-256), a certificate of this server signed by it, and
// the cluster secret, from which the gossip key and the gossip label are
// derived with HKDF-SHA256. Private files have mode 0600; a private file that
// others can read is refused.
//
// A join token is "sluice-join.<id>.<secret>.<caHash>". The secret is 256
// random bits; the cluster keeps only its hash. caHash is the SHA-256 of the
// CA's certificate, so an agent knows whom to believe without any file being
// copied: [ClientTLS] accepts exactly those servers whose certificate chains
// to a CA with that hash and names the host that was dialled. The token, sent
// as "Authorization: Bearer …", is also how the agent proves itself; it never
// travels before the server has proved itself.
//
// An API key is "sk-" and 256 random bits; [HashKey] of it is what is stored
// and looked up. Since all secrets here are uniformly random, a plain SHA-256
// is enough: there is nothing to guess that a slow hash would protect.
//
// # In which order
//
//	server                                   agent
//	a, _ := trust.Open(dir)
//	a.ServerTLS(hosts), trust.JoinHandler
//	trust.CreateToken(store, …) ──by hand──► tok, _ := trust.ParseToken(text)
//	                                         w, _ := trust.Join(ctx, addr, tok)
//	                                         gossip with w.GossipKey, w.Label
//	trust.VerifyBearer(store, header, now) ◄─ trust.HTTPClient(tok)
//
// # What the caller owes it
//
// A store of token records ([TokenStore]; [TokenFile] is one), fleet time for
// expiry, and care with what it prints: types with secrets show themselves
// masked in fmt and slog, and no error here contains one, but a string handed
// out by Reveal or NewKey is the caller's to protect.
//
// # What it does not do
//
// Roles and quotas of tenants, rate limits on failed attempts, certificates
// from a public CA, or copying the CA to further servers.
package trust
