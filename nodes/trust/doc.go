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
// An agent beyond loopback serves leases and logs to servers over TLS, both
// ways: [Identity] makes a key and a certificate request, the server signs it
// when the agent joins, for the agent's own hosts and 30 days, and the agent
// renews it by joining again. Servers prove themselves to agents by their own
// certificate, and by the agent key, which is derived from the cluster secret
// too. Certificates say in their subject whether a server or an agent bears
// them, and each side checks: a join token gives nobody the server's part.
// [AgentUsesTLS] is the one place that says which addresses this is for.
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
//	                                         id, _ := trust.OpenIdentity(dir, node, hosts, tok)
//	                                         w, _ := id.Enrol(ctx, trust.Join at addr)
//	                                         gossip with w.GossipKey, w.Label
//	                                         go id.Renew(ctx, …)
//	trust.VerifyBearer(store, header, now) ◄─ trust.HTTPClient(tok)
//	a.AgentClient(trust.AgentUsesTLS) ──────► id.TLS(), id.CheckBearer
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
// from a public CA, or copying the CA to further servers. A certificate cannot
// be revoked: an agent whose token was revoked is refused at the control port
// at once, and at most 30 days later has no certificate. A token is not bound
// to a node: its bearer may name itself and its hosts as it likes, so that who
// also diverts traffic can pass for another agent, but not for a server. The
// agent key is one for the whole cluster; without a server's certificate it
// opens nothing.
package trust
