// SPDX-License-Identifier: Apache-2.0

package converge

import "slices"

// Following is the want that a Follower is current.
func Following(t Follower, why string) Want {
	return Want{
		Thing: t,
		Why:   why,
		To:    func(found State) (State, error) { return t.Current(found), nil },
	}
}

// followers builds, from a journalled change, the Followers that its undo affects.
func (e *Engine) followers(c Change) (list []Follower) {
	for _, ref := range c.Affects {
		t, _ := e.ThingOf(ref) // nil where this gpuadm does not know the kind
		follower, ok := t.(Follower)
		if ok {
			list = append(list, follower)
		}
	}
	return list
}

// addFollowers adds to a stage's wants the Followers that the undo of a change affects.
func (e *Engine) addFollowers(wants []Want, c Change) []Want {
	for _, t := range e.followers(c) {
		if !slices.ContainsFunc(wants, func(w Want) bool { return w.Ref().covers(t.Ref()) }) {
			wants = append(wants, Following(t, ""))
		}
	}
	return wants
}

// followersElsewhere returns the Followers of the stages that verify or follow this one. A stage
// that cannot say yet what it wants has none.
func (e *Engine) followersElsewhere(m machine, st Stage) (list []step) {
	for _, later := range e.Stages {
		if later.Verifies != st.Name && !slices.Contains(later.Follows, st.Name) {
			continue
		}
		wants, err := later.Wants(e.Spec, m.facts)
		if err != nil {
			continue
		}

		for _, w := range wants {
			s := step{want: w, Line: Line{Change: Change{Ref: w.Ref()}}}
			if is[Follower](s) {
				list = append(list, s)
			}
		}
	}
	return list
}

// noteFollowers notes which Followers of the stage, and of the stages that verify or follow it, the
// step's change affects.
func (s *step) noteFollowers(steps, elsewhere []step) {
	s.Follows = is[Follower](*s)
	if s.Follows {
		return
	}

	s.Affects = nil
	for _, all := range [][]step{steps, elsewhere} {
		for i := range all {
			t, ok := all[i].want.Thing.(Follower)
			if ok && t.Affected("", s.Change) != "" {
				s.Affects = append(s.Affects, t.Ref())
			}
		}
	}
}

// foresee computes a Follower's state after the pending changes. If the state cannot be known yet
// and no change affects the Follower, the step is idle: a daemon that does not run will read its
// files when it starts.
func (s *step) foresee(t Follower, pending []Change) {
	if s.Cannot != "" || s.Unknown != "" {
		return
	}

	state := s.Before
	for _, c := range pending {
		state = t.Affected(state, c)
	}
	if state == s.Before {
		s.idle = s.Deferred != ""
		return
	}

	s.Before = state
	s.After = t.Current(state)
	if s.want.To == nil {
		return
	}
	if _, err := s.want.To(state); err != nil {
		s.Reason = cannot(err)
	}
}
