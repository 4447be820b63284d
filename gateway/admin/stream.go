package admin

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// AgentProtocol is the name that an agent upgrades to: after the 101 the
// connection carries nodes.Frame lines up and nodes.Down lines down.
const AgentProtocol = "sluice-agent/1"

// agentStream hands the connection of an agent to the controller.
func (s *Server) agentStream(w http.ResponseWriter, r *http.Request, who Actor) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), AgentProtocol) || !headerHas(r.Header.Get("Connection"), "upgrade") {
		w.Header().Set("Upgrade", AgentProtocol)
		return &Error{Status: http.StatusUpgradeRequired, Code: "upgrade_required", Message: "this path is for agents of protocol " + AgentProtocol,
			Remedy: "use an agent of the server's version"}
	}
	if err := s.enter(); err != nil {
		return err
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.leave()
		return err
	}
	s.wg.Add(1)
	defer s.wg.Done()
	defer s.leave()
	defer conn.Close()
	conn.SetDeadline(time.Time{})
	conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+AgentProtocol+"\r\n\r\n"); err != nil {
		return nil
	}
	conn.SetWriteDeadline(time.Time{})
	// The request's context ends with the handler; the server's with Shutdown.
	stop := closeOn(s.ctx.Done(), conn)
	defer stop()
	err = s.ctl.ServeAgent(s.ctx, &upgraded{Conn: conn, r: buf.Reader}, who.Name+" at "+peerOf(r))
	if err != nil && s.ctx.Err() == nil {
		s.log.Info("agent stream ended", "peer", peerOf(r), "who", who.Name, "err", err)
	}
	return nil
}

// closeOn closes c when done is; the returned func ends the watch.
func closeOn(done <-chan struct{}, c io.Closer) func() {
	end := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			c.Close()
		case <-end:
		}
	}()
	return func() { close(end); <-ended }
}

// upgraded reads what the server had read ahead first.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.r.Read(p) }

func headerHas(list, token string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(part), token) {
			return true
		}
	}
	return false
}
