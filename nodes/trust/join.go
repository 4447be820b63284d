package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
)

const (
	// JoinPath is where JoinHandler is mounted on the control port.
	JoinPath = "/v1/join"
	// maxWelcomeBytes bounds the server's answer; a longer one is an error.
	maxWelcomeBytes = 64 << 10
)

// ErrRefused: the server knows the token no longer, or never did.
var ErrRefused = errors.New("the server refused the join token: make another with `sluice token create`")

// Welcome is what a server tells an agent that proved itself.
type Welcome struct {
	Label     string `json:"label"`     // of gossip
	GossipKey []byte `json:"gossipKey"` // 32 bytes, secret
	CAPEM     string `json:"caPem"`
}

// LogValue masks the key in slog.
func (w Welcome) LogValue() slog.Value {
	return slog.GroupValue(slog.String("label", w.Label), slog.String("gossipKey", "***"))
}

// Format masks the key in fmt.
func (w Welcome) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "{label:%s gossipKey:***}", w.Label) }

// JoinHandler answers POST JoinPath with a Welcome to whoever bears a token
// that store knows. nowMs gives fleet time.
func JoinHandler(a *Authority, store TokenStore, nowMs func() int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "use POST", http.StatusMethodNotAllowed)
			return
		}
		if _, err := VerifyBearer(store, r.Header.Get("Authorization"), nowMs()); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// An error here is a client that left: there is nobody to tell.
		_ = json.NewEncoder(w).Encode(Welcome{Label: a.Label(), GossipKey: a.GossipKey(), CAPEM: string(a.CAPEM())})
	})
}

// Join presents the token to the server at addr (host:port of its control
// port) and returns what an agent needs to take part. Errors: ErrWrongCluster,
// ErrServerName, ErrRefused, or the network's.
func Join(ctx context.Context, addr string, t Token) (Welcome, error) {
	client := HTTPClient(t)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr+JoinPath, nil)
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: the address %q: %w", addr, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxWelcomeBytes))
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, ErrRefused)
	default:
		return Welcome{}, fmt.Errorf("trust: joining at %s: the server answered %s: is this the control port?", addr, resp.Status)
	}
	var w Welcome
	if err := json.Unmarshal(body, &w); err != nil || len(w.GossipKey) != 32 {
		return Welcome{}, fmt.Errorf("trust: joining at %s: the answer is no welcome: is this the control port?", addr)
	}
	return w, nil
}
