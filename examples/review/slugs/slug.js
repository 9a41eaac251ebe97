exports.slug = (title) => title.toLowerCase().replace(' ', '-')
