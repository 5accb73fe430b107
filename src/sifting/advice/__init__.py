"""Advice before a run: will selection pay here, how, and how much?"""
