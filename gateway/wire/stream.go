package wire

// Stream watches one streamed answer on its way to the client and decides which bytes go on. They go on unchanged but
// for two things that a client must not get: the usage chunk it did not ask for, and a blank line that would dispatch
// an event without data (widely used SDKs fail on it); what stood before such a line stays, glued to the next event.
//
// An event goes on as soon as its last byte is there; nobody can use a part of one. So an error event of ours never
// lands inside an engine's. Events longer than the caller's buffer go on in pieces.
//
// The zero value is ready and passes usage on.
type Stream struct {
	// HideUsage drops events that carry usage and nothing else.
	HideUsage bool

	// What was seen so far, for the caller to read.
	Usage   Usage
	Content int // events that carried a part of the answer
	Events  int // events with data
	// Malformed counts events with data that is neither the end marker nor a JSON object.
	Malformed int
	Done      bool // the end marker
	Finish    bool // a choice ended
	Error     bool // the engine reported failure
	Torn      bool // the last bytes sent are the beginning of an event

	framer   Framer
	dropTail bool // an LF that belongs to dropped bytes may follow
}

// Reset makes s ready for another answer, keeping its buffers.
func (s *Stream) Reset() {
	f := s.framer
	f.Reset()
	*s = Stream{framer: f}
}

// Feed takes the bytes kept last time, buf[:kept], and new ones behind them. On return buf[:send] is to be sent now
// and buf[send:send+keep] is the beginning of an event, to be put in front of the next bytes. It moves bytes inside
// buf. With full, nothing is kept: the buffer has no room left, or the answer has ended.
func (s *Stream) Feed(buf []byte, kept int, full bool) (send, keep int) {
	w := kept // buf[:w] is what goes on, or is kept
	open := 0 // where the event under way begins
	for r := kept; r < len(buf); {
		n, mark := s.framer.Next(buf[r:])
		drop := 0 // how many of the bytes up to w, after they were moved, do not go on
		switch mark {
		case MarkEvent:
			drop = s.event(w + n - open)
		case MarkTail:
			if s.dropTail {
				drop = 1
			}
		}
		if w != r {
			copy(buf[w:], buf[r:r+n])
		}
		w += n - drop
		r += n
		if mark != MarkMore {
			open = w
		}
	}
	if full {
		if w > open {
			s.Torn = true
		}
		return w, 0
	}
	return open, w - open
}

// event books the event that the framer has just ended, whose last size bytes are at hand, and returns how many bytes
// of its end do not go on.
func (s *Stream) event(size int) (drop int) {
	f := &s.framer
	torn := s.Torn
	s.Torn, s.dropTail = false, false
	if f.Lines() == 0 {
		s.dropTail = true
		if len(f.Name()) > 0 && !torn {
			return size // its name must not stick to the next event
		}
		return f.Blank()
	}
	s.Events++
	if f.Over() {
		s.Content++
		return 0
	}
	ev := ReadEvent(f.Name(), f.Data())
	if ev.Usage.Known {
		s.Usage = ev.Usage
	}
	if ev.Content {
		s.Content++
	}
	if ev.Malformed {
		s.Malformed++
	}
	s.Done = s.Done || ev.Done
	s.Finish = s.Finish || ev.Finish
	s.Error = s.Error || ev.Error
	if s.HideUsage && ev.UsageOnly() && !torn {
		s.dropTail = true
		return size
	}
	return 0
}
