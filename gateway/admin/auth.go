package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"golang.org/x/sys/unix"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/trust"
)

// TokenAuth takes peers of the Unix socket for operators (its mode lets only
// the server's user in) and all others by their bearer token, whose hash and
// role are facts of the registry.
type TokenAuth struct{ Controller Controller }

// Check implements Auth.
func (a TokenAuth) Check(r *http.Request) (Actor, error) {
	if name, ok := LocalPeer(r); ok {
		return Actor{Name: name, Role: RoleOperator}, nil
	}
	id, err := trust.VerifyBearer(tokenFacts{a.Controller}, r.Header.Get("Authorization"), 0)
	if err != nil {
		return Actor{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	who := Actor{Name: "token:" + id}
	a.Controller.Read(func(s *registry.State, _ *nodes.Fleet, _ int64) {
		if t := s.Tokens[id]; t != nil {
			who.Role = Role(t.Role)
		}
	})
	if who.Role != RoleOperator && who.Role != RoleAgent {
		return Actor{}, ErrUnauthenticated // revoked between the two reads
	}
	return who, nil
}

// Tokens gives trust the token hashes of the registry, for trust.VerifyBearer
// and trust.JoinHandler.
func Tokens(c Controller) trust.TokenStore { return tokenFacts{c} }

type tokenFacts struct{ c Controller }

// Token implements trust.TokenStore.
func (t tokenFacts) Token(id string) (rec trust.TokenRecord, ok bool) {
	t.c.Read(func(s *registry.State, _ *nodes.Fleet, _ int64) {
		if spec := s.Tokens[id]; spec != nil {
			rec, ok = trust.TokenRecord{ID: spec.ID, HashHex: spec.HashHex}, true
		}
	})
	return rec, ok
}

type localKey struct{}

// markLocal notes the user of a Unix socket's peer in the connection's context.
func markLocal(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	name := "local"
	if raw, err := u.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				name = "uid:" + strconv.FormatUint(uint64(cred.Uid), 10)
			}
		})
	}
	return context.WithValue(ctx, localKey{}, name)
}

// LocalPeer names the user on the other end of a Unix socket; false when the
// request came another way.
func LocalPeer(r *http.Request) (string, bool) {
	name, ok := r.Context().Value(localKey{}).(string)
	return name, ok
}
