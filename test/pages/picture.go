// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
)

// A picture of a recorded terminal for pages that play no recordings. Its form of input:
// https://docs.asciinema.org/manual/asciicast/v2/.
const (
	columns, rows = 80, 24

	// A recording of minutes becomes a picture of seconds: a pause counts as longestPause at most,
	// and the whole lasts pictureTime, in at most maxFrames frames, and then lastFrame.
	longestPause = 0.5  // seconds
	pictureTime  = 20.0 // seconds
	lastFrame    = 5.0  // seconds
	maxFrames    = 40

	charWidth, lineHeight, margin = 8, 17, 12 // pixels
)

// colors are those of SGR, by their parameter.
var colors = map[string]string{"31": "#f47067", "32": "#8ddb8c", "33": "#daaa3f", "36": "#76e3ea"}

// A glyph is a character and the parameter of its colour, "" for the usual one.
type glyph struct {
	char  rune
	color string
}

// A screen is a terminal's, as far as gpuadm writes on one: lines, carriage returns, erased lines
// and colours.
type screen struct {
	lines [][]glyph
	color string
	col   int
}

func newScreen() *screen { return &screen{lines: [][]glyph{nil}} }

func (s *screen) write(text string) error {
	for len(text) > 0 {
		if after, found := strings.CutPrefix(text, "\x1b["); found {
			end := strings.IndexFunc(after, func(r rune) bool { return r >= '@' && r <= '~' })
			if end < 0 {
				return fmt.Errorf("cannot show %q: it has no end", text)
			}
			if err := s.control(after[:end], after[end]); err != nil {
				return err
			}
			text = after[end+1:]
			continue
		}

		char, size := firstRune(text)
		text = text[size:]
		switch char {
		case '\r':
			s.col = 0
		case '\n':
			s.lines = append(s.lines, nil)
		default:
			s.put(char)
		}
	}
	return nil
}

func firstRune(text string) (char rune, size int) {
	for i, r := range text {
		if i > 0 {
			return char, i
		}
		char = r
	}
	return char, len(text)
}

func (s *screen) put(char rune) {
	if s.col == columns {
		s.lines = append(s.lines, nil)
		s.col = 0
	}
	last := len(s.lines) - 1
	for len(s.lines[last]) <= s.col {
		s.lines[last] = append(s.lines[last], glyph{char: ' '})
	}
	s.lines[last][s.col] = glyph{char, s.color}
	s.col++
}

func (s *screen) control(parameter string, command byte) error {
	switch {
	case command == 'K' && parameter == "2":
		s.lines[len(s.lines)-1] = nil
	case command == 'm' && (parameter == "0" || parameter == "" || parameter == "39"):
		s.color = ""
	case command == 'm' && colors[parameter] != "":
		s.color = parameter
	case command == 'm':
		return fmt.Errorf("cannot show colour %q", parameter)
	default:
		return fmt.Errorf("cannot show ESC [ %s %c", parameter, command)
	}
	return nil
}

// shown is what the terminal shows now: its last lines.
func (s *screen) shown() string {
	from := max(0, len(s.lines)-rows)
	var b strings.Builder
	for i, line := range s.lines[from:] {
		if len(line) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text y="%d">`, margin+lineHeight*(i+1))
		for start := 0; start < len(line); {
			end := start
			var text strings.Builder
			for end < len(line) && line[end].color == line[start].color {
				text.WriteRune(line[end].char)
				end++
			}

			escaped := html.EscapeString(strings.TrimRight(text.String(), " "))
			if end < len(line) {
				escaped = html.EscapeString(text.String())
			}
			if color := colors[line[start].color]; color != "" {
				escaped = fmt.Sprintf(`<tspan fill="%s">%s</tspan>`, color, escaped)
			}
			b.WriteString(escaped)
			start = end
		}

		b.WriteString("</text>\n")
	}

	return b.String()
}

// A frame is what the terminal shows, and when it begins in the picture, in seconds.
type frame struct {
	at   float64
	text string
}

// Picture makes of a recording of a terminal an animated SVG.
func Picture(recording io.Reader) (string, error) {
	frames, length, err := framesOf(recording)
	if err != nil {
		return "", err
	}
	return animate(thin(frames, length), length+lastFrame), nil
}

func framesOf(recording io.Reader) (frames []frame, length float64, err error) {
	s := newScreen()
	last := 0.0
	lines := bufio.NewScanner(recording)
	lines.Buffer(nil, 1<<20)
	lines.Scan() // the header: the size is that of a terminal of 80 × 24
	for lines.Scan() {
		var event []any
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || len(event) != 3 {
			return nil, 0, fmt.Errorf("cannot read the recording: %q: %v", lines.Text(), err)
		}
		at, isTime := event[0].(float64)
		text, isText := event[2].(string)
		if !isTime || !isText {
			return nil, 0, fmt.Errorf("cannot read the recording: %q", lines.Text())
		}

		length += min(at-last, longestPause)
		last = at
		if err := s.write(text); err != nil {
			return nil, 0, err
		}
		frames = append(frames, frame{length, s.shown()})
	}

	if length <= pictureTime {
		return frames, length, lines.Err()
	}
	for i := range frames {
		frames[i].at *= pictureTime / length
	}
	return frames, pictureTime, lines.Err()
}

// thin keeps at most maxFrames frames: of each part of the time the last one, and the very last.
func thin(all []frame, length float64) (kept []frame) {
	part := length / (maxFrames - 1)
	for i, f := range all {
		isLast := i == len(all)-1
		if isLast || int(all[i+1].at/part) != int(f.at/part) {
			kept = append(kept, f)
		}
	}

	return kept
}

// animate shows one frame after the other, for ever. Readers who ask for less motion see the last.
func animate(frames []frame, length float64) string {
	var b strings.Builder
	width, height := columns*charWidth+2*margin, rows*lineHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" xml:space="preserve"`, width, height)
	b.WriteString(` role="img" aria-label="gpuadm apply in a terminal">` + "\n")
	b.WriteString("<style>\n" +
		"text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #cdd9e5; white-space: pre }\n" +
		"g { visibility: hidden; animation: " + seconds(length) + "s step-end infinite }\n")
	for i, f := range frames {
		from, to := 100*f.at/length, 100.0
		if i == 0 {
			from = 0
		}
		if i+1 < len(frames) {
			to = 100 * frames[i+1].at / length
		}
		fmt.Fprintf(&b, "@keyframes f%d { 0%% { visibility: hidden } ", i)
		fmt.Fprintf(&b, "%s%% { visibility: visible } %s%% { visibility: hidden } }\n", seconds(from), seconds(to))
		fmt.Fprintf(&b, "#f%d { animation-name: f%d }\n", i, i)
	}

	b.WriteString("@media (prefers-reduced-motion: reduce) { g { animation: none } ")
	fmt.Fprintf(&b, "#f%d { visibility: visible } }\n", len(frames)-1)
	b.WriteString("</style>\n")

	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1c2128"/>`+"\n", width, height)
	for i, f := range frames {
		fmt.Fprintf(&b, "<g id=\"f%d\" transform=\"translate(%d 0)\">\n%s</g>\n", i, margin, f.text)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 2, 64) }
