package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	tokenPrefix = "sluice-join"
	keyPrefix   = "sk-"
	secretBytes = 32
	idBytes     = 6
	// maxHeaderBytes is the longest credential looked at; a longer one is
	// ErrBearer without being hashed.
	maxHeaderBytes = 1024
	// MaxNameBytes is the longest name of a token.
	MaxNameBytes = 128
)

// Errors of credentials. None of them contains any part of a secret.
var (
	// ErrTokenFormat: the text is no join token.
	ErrTokenFormat = errors.New("this is not a join token: it has the form sluice-join.<id>.<secret>.<caHash>; make one with `sluice token create`")
	// ErrBearer: the header holds no acceptable credential. Which part was
	// wrong is not told.
	ErrBearer = errors.New("the credential is missing or not valid: send `Authorization: Bearer <join token>`")
	// ErrTokenExpired: the token was good once.
	ErrTokenExpired = errors.New("the join token has expired: make another with `sluice token create`")
)

// Token is a join token. The zero value is no token. It shows itself masked;
// Reveal gives the text. Safe to copy.
type Token struct {
	ID     string
	CAHash [sha256.Size]byte // SHA-256 of the CA's certificate (DER)
	secret string
}

// Reveal is the whole token as text, for the person who will use it and for
// the Authorization header.
func (t Token) Reveal() string {
	return tokenPrefix + "." + t.ID + "." + t.secret + "." + hex.EncodeToString(t.CAHash[:])
}

// String shows which token it is and nothing that works.
func (t Token) String() string { return tokenPrefix + "." + t.ID + ".***" }

// GoString masks %#v too.
func (t Token) GoString() string { return t.String() }

// Format masks every verb: a struct's unexported fields print otherwise.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, t.String()) }

// LogValue masks it in slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText refuses: a token in JSON is a leak.
func (t Token) MarshalText() ([]byte, error) {
	return nil, errors.New("trust: a join token is not written into documents; use its id")
}

// IsZero says whether there is no token.
func (t Token) IsZero() bool { return t.secret == "" }

// Header is the value of the Authorization header.
func (t Token) Header() string { return "Bearer " + t.Reveal() }

// Hash is what a store keeps of the token: hex SHA-256 over id and secret.
func (t Token) Hash() string { return hashToken(t.ID, t.secret) }

func hashToken(id, secret string) string {
	sum := sha256.Sum256([]byte(id + "." + secret))
	return hex.EncodeToString(sum[:])
}

// ParseToken reads a token. Spaces around it are ignored, since it is pasted.
// The error is ErrTokenFormat and never quotes the text.
func ParseToken(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(text) > maxHeaderBytes || len(parts) != 4 || parts[0] != tokenPrefix {
		return Token{}, ErrTokenFormat
	}
	t := Token{ID: parts[1], secret: parts[2]}
	hash, err := hex.DecodeString(parts[3])
	if err != nil || len(hash) != sha256.Size || !plain(t.ID) || !plain(t.secret) || len(t.secret) < 40 {
		return Token{}, ErrTokenFormat
	}
	copy(t.CAHash[:], hash)
	return t, nil
}

// plain accepts what base64url writes.
func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return s != ""
}

// TokenRecord is what a cluster keeps of a token.
type TokenRecord struct {
	ID        string `json:"id"`
	HashHex   string `json:"hashHex"`
	Name      string `json:"name,omitempty"`
	CreatedMs int64  `json:"createdMs"`
	ExpiresMs int64  `json:"expiresMs,omitempty"` // fleet time; 0 never
}

// TokenStore finds records. Token must be safe for concurrent use.
type TokenStore interface {
	Token(id string) (TokenRecord, bool)
}

// CreateToken makes a token for agents of the cluster whose CA has caHash, and
// the record to store. lifeMs 0 means that it never expires. The token is
// shown once, by the caller; it cannot be recovered from the record.
func CreateToken(caHash [sha256.Size]byte, name string, nowMs, lifeMs int64) (Token, TokenRecord, error) {
	if len(name) > MaxNameBytes {
		return Token{}, TokenRecord{}, fmt.Errorf("trust: the token's name has %d bytes, the limit is %d", len(name), MaxNameBytes)
	}
	if lifeMs < 0 {
		return Token{}, TokenRecord{}, errors.New("trust: the token's life is negative")
	}
	t := Token{ID: random(idBytes), CAHash: caHash, secret: random(secretBytes)}
	r := TokenRecord{ID: t.ID, HashHex: t.Hash(), Name: name, CreatedMs: nowMs}
	if lifeMs > 0 {
		r.ExpiresMs = nowMs + lifeMs
	}
	return t, r, nil
}

// VerifyBearer returns the id of the token in an Authorization header's value.
// The comparison takes the same time for a known and an unknown id. Errors:
// ErrBearer, ErrTokenExpired.
func VerifyBearer(store TokenStore, header string, nowMs int64) (id string, err error) {
	credential, ok := Bearer(header)
	if !ok {
		return "", ErrBearer
	}
	t, err := ParseToken(credential)
	if err != nil {
		return "", ErrBearer
	}
	record, known := store.Token(t.ID)
	want := record.HashHex
	if !known || len(want) != hex.EncodedLen(sha256.Size) {
		want = nobody // compared all the same, for equal time
		known = false
	}
	same := subtle.ConstantTimeCompare([]byte(want), []byte(t.Hash())) == 1
	switch {
	case !known || !same:
		return "", ErrBearer
	case record.ExpiresMs != 0 && nowMs >= record.ExpiresMs:
		return "", ErrTokenExpired
	}
	return t.ID, nil
}

// nobody is a hash that nothing known hashes to.
var nobody = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// Bearer takes the credential out of an Authorization header's value; the
// scheme's case does not matter.
func Bearer(header string) (credential string, ok bool) {
	const scheme = "bearer "
	if len(header) > maxHeaderBytes || len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	credential = strings.TrimSpace(header[len(scheme):])
	return credential, credential != ""
}

// NewKey makes a tenant's API key: the secret, shown once, and the hash to
// store and to look up by.
func NewKey() (secret, hashHex string) {
	secret = keyPrefix + random(secretBytes)
	return secret, HashKey(secret)
}

// HashKey is the hex SHA-256 of an API key. A table keyed by it may be read
// with a plain map lookup: what an attacker could learn from its timing is
// about the hash, not about the key.
func HashKey(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// Mask shows enough of a secret to tell two apart, and no more: "sk-…" and the
// first 8 hex digits of its hash.
func Mask(secret string) string {
	kind := "secret"
	switch {
	case strings.HasPrefix(secret, keyPrefix):
		kind = "sk"
	case strings.HasPrefix(secret, tokenPrefix):
		kind = tokenPrefix
	}
	return kind + "-***" + HashKey(secret)[:8]
}

// random is n random bytes in base64url without padding. crypto/rand.Read
// never fails: it ends the process if the system has no randomness.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}
