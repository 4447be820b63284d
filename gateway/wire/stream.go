package wire

// Stream watches one streamed answer on its way to the client and decides which bytes go on. They go on unchanged but
// for two things that a client must not get: the usage chunk it did not ask for, and a blank line that would dispatch
// an event without data (widely used SDKs fail on it); what stood before such a line stays, glued to the next event.
//
// An event goes on as soon as its last byte is there; nobody can use a part of one. So an error event of ours never
// lands inside an engine's. Events longer than the caller's buffer go on in pieces.
//
// An error ends the stream: nothing behind its event goes on. The event itself does if its shape is the one that
// official SDKs raise on; else it is dropped and the caller tells Fault in its own words.
//
// The zero value is ready and passes usage on.
type Stream struct {
	// HideUsage drops events that carry usage and nothing else.
	HideUsage bool
	// PassErrors lets error events of any shape go on, for APIs with a shape of their own.
	PassErrors bool

	// What was seen so far, for the caller to read.
	Usage   Usage
	Content int // events that carried a part of the answer
	Events  int // events with data
	// Malformed counts events with data that is neither the end marker nor a JSON object.
	Malformed int
	Done      bool   // the end marker
	Finish    bool   // a choice ended
	Openings  int    // events that say nothing yet; see Event.Opening
	Error     bool   // the engine reported failure
	Early     bool   // and had said nothing before
	Untold    bool   // and its event was dropped
	Fault     string // and this is its message
	Loose     bool   // lines outside of events went on: comments
	Torn      bool   // the last bytes sent are the beginning of an event
	Typed     bool   // events say what they are, and the last of them ends the stream: there is no [DONE]
	ID        []byte // of the response, when events told it

	framer   Framer
	dropTail bool // an LF that belongs to dropped bytes may follow
}

// Begun reports that something worth sending was seen: more than chunks with a role and no content.
func (s *Stream) Begun() bool { return s.Loose || s.Torn || s.Events > s.Openings }

// Reset makes s ready for another answer, keeping its buffers.
func (s *Stream) Reset() {
	f := s.framer
	f.Reset()
	*s = Stream{framer: f, ID: s.ID[:0]}
}

// Feed takes the bytes kept last time, buf[:kept], and new ones behind them. On return buf[:send] is to be sent now
// and buf[send:send+keep] is the beginning of an event, to be put in front of the next bytes. It moves bytes inside
// buf. With full, nothing is kept: the buffer has no room left, or the answer has ended.
func (s *Stream) Feed(buf []byte, kept int, full bool) (send, keep int) {
	if s.Error {
		return 0, 0
	}
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
		if s.Error {
			return w, 0
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
		s.Loose = s.Loose || size > f.Blank() || torn
		return f.Blank()
	}
	begun := s.Begun()
	s.Events++
	if f.Over() {
		s.Content++
		return 0
	}
	ev := ReadEvent(f.Name(), f.Data())
	if ev.Usage.Known {
		if ev.Typed { // what the first of Anthropic's events counts, the last need not repeat
			ev.Usage.Input = max(ev.Usage.Input, s.Usage.Input)
		}
		s.Usage = ev.Usage
	}
	if ev.Content {
		s.Content++
	}
	if ev.Malformed {
		s.Malformed++
	}
	s.Typed = s.Typed || ev.Typed
	if ev.Typed && len(s.ID) == 0 && len(ev.ID) <= MaxResponseIDBytes {
		s.ID = append(s.ID, ev.ID...)
	}
	s.Done = s.Done || ev.Done
	s.Finish = s.Finish || ev.Finish
	if ev.Opening {
		s.Openings++
	}
	if ev.Error {
		s.Error, s.Early, s.Fault = true, !begun && !torn, ev.FaultText()
		if s.Untold = !ev.Shaped && !s.PassErrors; s.Untold && !torn {
			return size
		}
		return 0
	}
	if s.HideUsage && ev.UsageOnly() && !torn {
		s.dropTail = true
		return size
	}
	return 0
}
